"""The crowded machine's figures are judged by their medians. The figures themselves are measured on a quiet machine."""

from __future__ import annotations

import sys

import pytest
from benchmarks import crowded


@pytest.mark.parametrize(("beside", "many", "code"), [(60.0, 80.0, 0), (59.0, 80.0, 1), (60.0, 79.0, 1)])
def test_median_below_its_floor_fails(beside: float, many: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = iter([(beside, many), (1.0, 1.0), (99.0, 99.0)])  # one bad round and one good one do not decide

    def measure(*_: object) -> dict[str, float]:
        return dict(zip(("alone", *crowded.FLOORS), (100.0, *next(rounds)), strict=True))

    monkeypatch.setattr(crowded, "measure", measure)
    monkeypatch.setattr(crowded, "make_model", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["crowded", "--rounds", "3", "--assert"])
    assert crowded.main() == code
    assert ("missed" in capsys.readouterr().out) == bool(code)

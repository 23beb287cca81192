"""The check of a GPU, tried out without one: every part runs, and the report has what a reader looks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.gpu_check import main  # noqa: E402


@pytest.mark.slow
def test_the_report_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    small = ["--layers", "1", "--hidden", "128", "--batch", "3", "--steps", "2", "--prompt", "40"]
    assert main(["--platform", "xpu", "--emulate", "--area", "hooks", *small, "--output", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["conformance"]["ok"] and found["platform"]["emulated"] and found["layers"] == 1
    assert set(found["share_of_limit"]) == set(found["floor_met"]) == {"decode1", "decode3", "prefill"}
    assert all(0 < share < 1.5 for share in found["share_of_limit"].values()) and found["times"]["graphs"] > 0

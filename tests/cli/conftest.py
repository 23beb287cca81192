"""Fixtures of the command-line tests: commands run in this process, where nothing is loaded that a help page does not need."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from llmx_cli.main import run


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


@pytest.fixture
def llmx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs `llmx WORDS...` in this process, wide enough that nothing is cut."""
    monkeypatch.setenv("COLUMNS", "300")

    def ran(*words: str) -> Ran:
        code = run(list(words))
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return ran

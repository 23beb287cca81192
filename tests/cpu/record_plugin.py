"""A pytest plugin (-p tests.cpu.record_plugin): the tests run at the portable level, and their calls are recorded to the file $RECORD_TO."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cpu.recording import Recorder

from llmx_cpu import native

_RECORDER = Recorder(Path(os.environ["RECORD_TO"]))
native.library = lambda: _RECORDER  # type: ignore[assignment]  # before any test module takes it
native.best_isa = lambda: "portable"  # type: ignore[assignment]


def pytest_unconfigure(config: pytest.Config) -> None:
    """The file is whole."""
    _RECORDER.close()

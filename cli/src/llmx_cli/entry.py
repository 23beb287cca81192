"""What the `llmx` command calls: it spawns the engine process of `llmx serve` before anything else is read, then runs the command line.

Reading the command line's own modules takes a tenth of a start, and the engine process does not wait for what they say.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmx.engine.spawn import EngineProcess

__all__ = ["run"]


def run() -> int:
    """Runs the process's own command line; the exit code. No engine process is left behind, whatever comes of it."""
    spawned = _spawn() if sys.argv[1:2] == ["serve"] and not {"-h", "--help"} & set(sys.argv) else None
    try:
        from llmx_cli.main import run as run_command

        return run_command(spawned=spawned)
    finally:
        if spawned is not None:
            spawned.kill()


def _spawn() -> EngineProcess | None:
    from llmx.engine.spawn import EngineProcess
    from llmx.errors import EngineDead

    signal.signal(signal.SIGTERM, _leave)  # until the server has its own handlers
    try:
        return EngineProcess()
    except EngineDead:
        return None  # the command tries once more, and says what is wrong


def _leave(number: int, frame: object) -> None:
    raise SystemExit(0)

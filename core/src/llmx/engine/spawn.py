"""EngineProcess: an interpreter that has begun to import the engine, before it is known what it shall run.

A start takes about as long as its imports. So a command spawns this first and resolves its options meanwhile; for
the same reason this module imports next to nothing. What to run is said later, by `llmx.engine.child`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from llmx.errors import EngineDead

__all__ = ["EngineProcess"]

_KILL_WAIT_S = 5.0  # a killed process is gone at once, unless a device or a file system holds it


class EngineProcess:
    """A child process `python -m llmx.engine.process` and the folder of the two sockets to it.

    Raises EngineDead when it cannot be started, for instance because the disk is full.
    """

    def __init__(self) -> None:
        self.folder = Path()
        try:
            self._start()
        except OSError as error:
            self.forget()
            raise EngineDead(f"the engine process cannot be started: {error}") from error

    def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="llmx-"))
        self.requests, self.outputs = (f"ipc://{self.folder / name}" for name in ("requests", "outputs"))
        # whether this thread lives as long as the process decides how the child learns of its parent's end (llmx.engine.parent)
        thread = "main" if threading.current_thread() is threading.main_thread() else "thread"
        command = [sys.executable, "-m", "llmx.engine.process", self.requests, self.outputs, str(os.getpid()), thread]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def configure(self, message: bytes) -> None:
        """Say what to start, once. A process that has ended meanwhile is not an error here: who waits for it learns that."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(message)

    def forget(self) -> None:
        """Remove the folder of the sockets: nobody connects to them any more."""
        if self.folder.name:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End the process now. Idempotent."""
        if self.process.poll() is None:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_KILL_WAIT_S)
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.forget()

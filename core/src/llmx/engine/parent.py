"""The engine process ends with its parent, whatever it is doing: no orphan keeps the memory of a model."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["Parent"]

_PR_SET_PDEATHSIG = 1


class Parent:
    """The process that started this one.

    Where its main thread did, the kernel kills this process with it, also in the middle of a step. The kernel means the
    thread, so a child of another thread is not bound so; it looks for its parent between steps.
    """

    def __init__(self, pid: str, started_by: str) -> None:
        self._pid = int(pid)
        if started_by == "main":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        self.check()  # it may have died before

    def check(self) -> None:
        """Raise SystemExit when the parent is gone."""
        if os.getppid() != self._pid:
            raise SystemExit(0)

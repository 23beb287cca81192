"""SharedThreads: what the engine processes of one server share their compute threads by. Core makes it, platforms use it."""

from __future__ import annotations

import os
from dataclasses import replace

from llmx.config import EngineConfig

__all__ = ["SharedThreads"]


class SharedThreads:
    """A file for the engines of one server, empty at first. threads: of all of them together; None: as many as their platform takes by itself.

    It has no name in a folder and is gone with the last process that has it open, so nothing is left behind however they end. Where the
    system has no such files, engines share nothing.
    """

    def __init__(self, threads: int | None) -> None:
        self._threads = threads or 0
        self._fd = os.memfd_create("llmx-threads") if hasattr(os, "memfd_create") else -1

    def shared(self, config: EngineConfig) -> EngineConfig:
        """The configuration of an engine that shares them."""
        if self._fd < 0:
            return config
        file = f"/proc/{os.getpid()}/fd/{self._fd}"  # so also for a process that was spawned before, or takes the place of one that died
        return replace(config, platform=replace(config.platform, shared_threads=(file, self._threads)))

    def close(self) -> None:
        """Engines that start later cannot join any more. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

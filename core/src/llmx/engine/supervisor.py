"""Supervisor: starts the engine process, and starts it again when it dies, but not for ever.

A process that dies MAX_RESTARTS times within CRASH_WINDOW_S stays down: whatever kills it would kill it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from llmx.config import EngineConfig
from llmx.engine.child import EngineChild
from llmx.engine.messages import EngineInfo
from llmx.errors import EngineDead
from llmx.executor.base import Progress

__all__ = ["CRASH_WINDOW_S", "MAX_RESTARTS", "Supervisor"]

MAX_RESTARTS = 3
CRASH_WINDOW_S = 60.0


class Supervisor:
    """Owns the present engine process. `start` waits for it, `restart` replaces it."""

    def __init__(self, config: EngineConfig, user_set: list[str], clock: Callable[[], float] = monotonic) -> None:
        self._config, self._user_set = config, user_set
        self._clock = clock
        self._restarts: deque[float] = deque()
        self.child = EngineChild(config, user_set)

    async def start(self, on_progress: Progress | None = None) -> EngineInfo:
        """Wait until the engine takes requests. Raises what stopped it; then nothing is left behind."""
        try:
            return await self.child.ready(on_progress)
        except BaseException:
            self.child.kill()
            await self.child.close()
            raise

    async def restart(self) -> EngineInfo:
        """End what is left of the process and start a new one. Raises EngineDead past the crash-loop limit, or what stopped the start."""
        self.child.kill()
        await self.child.close()
        now = self._clock()
        while self._restarts and now - self._restarts[0] > CRASH_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= MAX_RESTARTS:
            raise EngineDead(f"the engine died {len(self._restarts) + 1} times within {CRASH_WINDOW_S:.0f} s and is not started again")
        self._restarts.append(now)
        self.child = EngineChild(self._config, self._user_set)
        return await self.start()

    async def close(self) -> None:
        """End the process: politely, then not."""
        await self.child.close()

"""Supervisor: starts the engine process, and starts it again when it dies, but not for ever.

A process that dies again after MAX_RESTARTS restarts within CRASH_WINDOW_S stays down: whatever kills it would kill it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from llmx.config import EngineConfig
from llmx.engine.child import EngineChild
from llmx.engine.messages import EngineInfo, Headers, ToEngine
from llmx.engine.spawn import EngineProcess
from llmx.errors import EngineDead, LlmxError

if TYPE_CHECKING:
    from llmx.executor.base import Progress

__all__ = ["CRASH_WINDOW_S", "MAX_RESTARTS", "Supervisor"]

MAX_RESTARTS = 3
CRASH_WINDOW_S = 60.0
_PAUSE_S = 1.0  # after a start that failed: what was short may be free again


class Supervisor:
    """Owns the present engine process. `start` waits for it, `restart` replaces it."""

    def __init__(
        self, config: EngineConfig, user_set: list[str], spawned: EngineProcess | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._config, self._user_set = config, user_set
        self._clock = clock
        self._restarts: deque[float] = deque()
        self._ended = False
        self.standing: list[ToEngine] = []  # what a process that replaces another is told first
        self.child = EngineChild(config, user_set, spawned)

    def another(self) -> Supervisor:
        """A new process of the same configuration, which begins to start."""
        return Supervisor(self._config, self._user_set)

    async def start(self, on_progress: Progress | None = None, on_headers: Callable[[Headers], None] | None = None) -> EngineInfo:
        """Wait until the engine takes requests. Raises what stopped it; then nothing is left behind."""
        try:
            return await self.child.ready(on_progress, on_headers)
        except BaseException:
            self.child.kill()
            await self.child.close()
            raise

    async def restart(self) -> EngineInfo:
        """End what is left of the process and start a new one. Raises EngineDead past the crash-loop limit; a failed start counts."""
        self.child.kill()
        await self.child.close()
        if self._ended:
            raise EngineDead("the engine was ended")
        why = ""
        while True:
            self._count(why)
            try:
                self.child = EngineChild(self._config, self._user_set)
                info = await self.start()
                for message in self.standing:
                    await self.child.send(message)
                return info
            except LlmxError as error:
                why = f"; the last start failed: {error}"
            await asyncio.sleep(_PAUSE_S)

    def _count(self, why: str) -> None:
        now = self._clock()
        while self._restarts and now - self._restarts[0] > CRASH_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= MAX_RESTARTS:
            raise EngineDead(f"the engine died {len(self._restarts) + 1} times within {CRASH_WINDOW_S:.0f} s and is not started again{why}")
        self._restarts.append(now)

    async def close(self) -> None:
        """End the process: politely, then not."""
        self._ended = True
        await self.child.close()

    def kill(self) -> None:
        """End the process at once, from any state, and start no other."""
        self._ended = True
        self.child.kill()

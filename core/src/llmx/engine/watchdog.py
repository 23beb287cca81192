"""Watchdog: notices an engine that lives and makes no progress, such as a stopped process or a step that never ends.

Every message of the engine is progress: it handles messages between steps, so a silent engine is asked for its statistics
and answers as soon as the step it is in has ended. Silence is counted in the watchdog's own ticks, so that time in which this
process did not run either (suspended, stopped together with the engine) does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Watchdog", "step_limit_s"]

_MAX_TICK_S = 0.5
_TICKS = 20  # per limit, so that the limit is overrun by a twentieth at most
_LEAST_DEFAULT_S = 30.0
_DEFAULT_STEPS = 10.0  # the default is this many times the largest step that the warm-up foresees


def step_limit_s(configured: float | None, largest_step_s: float) -> float:
    """Seconds of silence after which an engine counts as hung; 0: never. None takes at least 30 s, more where steps are long."""
    return max(_LEAST_DEFAULT_S, _DEFAULT_STEPS * largest_step_s) if configured is None else configured


class Watchdog:
    """Use: `note()` for each message of the engine, `await run(limit_s)` in a task, which returns when the engine hangs.

    ask: makes an idle engine say something.
    """

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._silent_s = 0.0
        self._asked = False

    def note(self) -> None:
        """The engine has said something."""
        self._silent_s = 0.0
        self._asked = False

    async def run(self, limit_s: float) -> None:
        """Return once the engine has been silent for limit_s seconds. Called anew for each engine process."""
        self.note()
        clock = asyncio.get_running_loop().time
        tick = min(limit_s / _TICKS, _MAX_TICK_S)
        while self._silent_s < limit_s:
            before = clock()
            await asyncio.sleep(tick)
            self._silent_s += min(clock() - before, 2 * tick)
            if not self._asked:
                self._asked = True
                await self._ask()

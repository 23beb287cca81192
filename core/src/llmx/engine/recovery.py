"""Recovery: whether the engine process lives, and what becomes of the requests when it does not.

Up; down (`down` says why, another process is being started); or dead (`dead` says why, for good). Streams that had a token
end with EngineDead, requests that had none are sent once more, new ones wait for at most `scheduler.recovery_timeout_s`
seconds after the death.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from llmx.engine.messages import EngineInfo
from llmx.engine.running import Running
from llmx.engine.supervisor import Supervisor
from llmx.errors import EngineDead, LlmxError

__all__ = ["Recovery"]

_log = logging.getLogger("llmx.engine")


class Recovery:
    """State of the engine process of one AsyncEngine. running: its requests, by id; limit_s: how long they wait for another engine."""

    def __init__(self, supervisor: Supervisor, running: Mapping[str, Running], limit_s: float) -> None:
        self._limit_s = limit_s
        self._supervisor = supervisor
        self._running = running
        self.dead: str | None = None
        self.down: str | None = None
        self._down_since = 0.0
        self._back = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """True while messages can be sent."""
        return self.dead is None and self.down is None

    def check(self) -> None:
        """Raise EngineDead unless the engine is up."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        if self.down is not None:
            raise EngineDead(f"{self.down}; another is being started")

    async def until_up(self) -> None:
        """Wait while another engine is started. Raises EngineDead when it is not back in time."""
        if self.down is not None:
            left = self._down_since + self._limit_s - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._back.wait(), max(left, 0.0))
            except TimeoutError:
                raise self._not_back(self.down) from None
        if self.dead is not None:
            raise EngineDead(self.dead)

    async def replace(self, death: EngineDead, send: Callable[[Running], Awaitable[None]]) -> EngineInfo | None:
        """The engine died: fail or keep its requests, start another, send what was kept. None: it stays dead."""
        if self.dead is not None:
            return None
        loop = asyncio.get_running_loop()
        self.down, self._down_since = str(death), loop.time()
        self._back.clear()
        _log.error("%s", "\n".join(filter(None, (str(death), death.detail))))
        kept = [running for running in self._running.values() if running.send_again()]
        for running in self._running.values():
            if running not in kept:
                running.fail(EngineDead(self.down))
        expiry = loop.call_later(self._limit_s, self._expire, self.down)
        try:
            info = await self._supervisor.restart()
        except LlmxError as error:
            self.end(f"{self.down}; {error}")
            _log.critical("%s", self.dead)
            return None
        finally:
            expiry.cancel()
        _log.warning("the engine is back after %.1f s; requests sent again: %d", loop.time() - self._down_since, len(kept))
        self.down = None
        self._back.set()
        for running in list(self._running.values()):
            if running.error is None and not running.processor.finished:
                await send(running)
        return info

    def end(self, reason: str) -> None:
        """Dead for good; every request that still waits fails."""
        self.dead = self.dead or reason
        self._back.set()
        for running in self._running.values():
            running.fail(EngineDead(reason))

    def _expire(self, reason: str) -> None:
        for running in self._running.values():
            running.fail(self._not_back(reason))

    def _not_back(self, reason: str) -> EngineDead:
        return EngineDead(f"{reason}; it was not back within {self._limit_s:g} s (--recovery-timeout)")

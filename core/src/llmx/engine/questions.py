"""Questions: messages to the engine process that it answers, each known by its token."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from llmx.engine.messages import ToEngine
from llmx.errors import EngineDead

__all__ = ["NOBODY", "Questions"]

NOBODY = -1  # the token of a question whose answer nobody waits for
_TIMEOUT_S = 10.0  # who asks does not wait longer for a busy engine


class Questions:
    """Those of one AsyncEngine. send: to the present engine process."""

    def __init__(self, send: Callable[[ToEngine], Awaitable[None]]) -> None:
        self._send = send
        self._tokens = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, make: Callable[[int], ToEngine], timeout_s: float = _TIMEOUT_S) -> Any:
        """The answer to the message that `make` makes with a token. Raises EngineDead, also when the engine does not answer in time."""
        token = next(self._tokens)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[token] = future
        try:
            await self._send(make(token))
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise EngineDead(f"the engine has not answered for {timeout_s:.0f} s") from None
        finally:
            self._open.pop(token, None)

    def answered(self, token: int, answer: Any) -> None:
        """The engine's answer; one that nobody waits for is dropped."""
        future = self._open.pop(token, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, reason: str) -> None:
        """The engine will answer none of those that are open."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(EngineDead(reason))
        self._open.clear()

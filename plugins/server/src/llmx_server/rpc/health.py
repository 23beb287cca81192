"""The standard grpc.health.v1 service: serving while /ready answers 200."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health import aio

__all__ = ["HEALTH", "Health"]

HEALTH = health.SERVICE_NAME
_LOOK_S = 1.0

_Answer = health_pb2.HealthCheckResponse


class Health(aio.HealthServicer):  # type: ignore[misc]  # the library has no types
    """names: what clients may ask for beside "", the server. is_ready: whether requests are taken now."""

    def __init__(self, names: Sequence[str], is_ready: Callable[[], Awaitable[bool]]) -> None:
        super().__init__()
        self._names, self._is_ready = ("", *names), is_ready

    async def refresh(self) -> None:
        """Look, and tell those who watch."""
        status = _Answer.SERVING if await self._is_ready() else _Answer.NOT_SERVING
        for name in self._names:
            await self.set(name, status)

    async def follow(self, leaving: asyncio.Event) -> None:
        """For ever: refresh every second, and at once when the server begins to drain."""
        while True:
            await self.refresh()
            if leaving.is_set():
                await asyncio.sleep(_LOOK_S)
                continue
            try:
                async with asyncio.timeout(_LOOK_S):
                    await leaving.wait()
            except TimeoutError:
                continue

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  the service's name for it
        """The status now; NOT_FOUND for a name that is no service here."""
        await self.refresh()
        return await super().Check(request, context)

"""HostMemory: which adapters have their matrices in host memory; the one unused for longest makes room, and is read again when it is next used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llmx.lora.slots import Adapter
from llmx.request import Request

__all__ = ["HostMemory"]


class HostMemory:
    """Of one engine, at most `limit` adapters. unfinished: gives the requests that wait or run; what these use, and what is pinned, stays beyond the limit."""

    def __init__(self, limit: int, unfinished: Callable[[], Iterable[Request]] = tuple) -> None:
        self._limit, self.unfinished = limit, unfinished
        self._held: dict[Adapter, None] = {}  # the one used last at the end

    def use(self, adapter: Adapter) -> None:
        """Its matrices are there and used now: others make room."""
        self._held.pop(adapter, None)
        self._held[adapter] = None
        if len(self._held) <= self._limit:
            return
        used = {request.adapter for request in self.unfinished()}
        for one in [one for one in self._held if one not in used and not one.pinned and one is not adapter][: len(self._held) - self._limit]:
            self.forget(one)
            one.parts = {}

    def forget(self, adapter: Adapter) -> None:
        """It is served no more, or was dropped."""
        self._held.pop(adapter, None)

"""Order of requests: who goes first, and so who is preempted last."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llmx.errors import ConfigError
from llmx.request import Request

__all__ = ["POLICIES", "OrderKey", "Waiting", "order_key"]

OrderKey = Callable[[Request], tuple[int, ...]]


def _fcfs(request: Request) -> tuple[int, ...]:
    return (request.arrival, request.index)


def _priority(request: Request) -> tuple[int, ...]:
    return (request.priority, request.arrival, request.index)


POLICIES: tuple[tuple[str, OrderKey], ...] = (("fcfs", _fcfs), ("priority", _priority))


def order_key(name: str) -> OrderKey:
    """The sort key of a policy: fcfs (first come, first served) or priority (lower number first, then first come)."""
    for known, key in POLICIES:
        if known == name:
            return key
    raise ConfigError(f"scheduling policy {name!r} is not known: use one of {', '.join(known for known, _ in POLICIES)}", field="policy")


class Waiting:
    """The waiting queue, kept in policy order. A preempted request keeps its arrival, so it returns near the front."""

    def __init__(self, key: OrderKey) -> None:
        self._key = key
        self._items: list[Request] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Request]:
        if not self._sorted:
            self._items.sort(key=self._key)
            self._sorted = True
        return iter(self._items)

    def add(self, request: Request) -> None:
        """Enter a request at its place."""
        if self._items and self._key(self._items[-1]) > self._key(request):
            self._sorted = False
        self._items.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out. Raises ValueError when it is not there."""
        self._items.remove(request)

    @property
    def num_tokens(self) -> int:
        """Tokens of all that wait."""
        return sum(len(request.tokens) for request in self._items)

    def oldest_s(self) -> float | None:
        """Arrival time of the request that has waited longest, None when empty."""
        return min((request.arrival_s for request in self._items), default=None)

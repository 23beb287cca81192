"""Turns: places that many want at the same time, shared fairly between those who own what wants them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

__all__ = ["Turn", "Turns"]


class Turns:
    """`most` places. A free one goes to the owner who has the fewest of them; of several, to the one who was not served for the longest time."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by owner, in the order in which they were last served

    async def take(self, owner: str) -> None:
        """Wait for a place; `leave` gives it back."""
        if self._free:  # nobody waits then
            self._give(owner)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # given in the same moment
                self.leave(owner)
            raise

    def leave(self, owner: str) -> None:
        """Give a place back."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while self._waiting:
            owner = min(self._waiting, key=lambda one: self._held[one])
            places = self._waiting.pop(owner)
            place = places.popleft()
            if places:
                self._waiting[owner] = places  # behind the others
            if not place.done():
                self._give(owner)
                place.set_result(None)
                return

    def _give(self, owner: str) -> None:
        self._free -= 1
        self._held[owner] += 1


class Turn:
    """One piece of work of an owner: it has a place from `take` on, until `end`."""

    def __init__(self, turns: Turns, owner: str) -> None:
        self._turns, self._owner, self._taken = turns, owner, False

    async def take(self) -> None:
        """Wait for the place. A second call changes nothing."""
        if not self._taken:
            await self._turns.take(self._owner)
            self._taken = True

    def end(self) -> None:
        """The work is done."""
        if self._taken:
            self._turns.leave(self._owner)
            self._taken = False

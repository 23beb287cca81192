"""ResponseStore: responses that can be fetched, continued and deleted later, in memory, within a size and an age."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten
from llmx_server.caller import Caller
from llmx_server.errors import NotFound
from llmx_server.frames import encode

__all__ = ["Record", "ResponseStore"]


@dataclass(slots=True)
class Record:
    """One response. items: the conversation that it answers; events: what a stream of it says, kept for background ones; owner: the name of a Caller."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    task: asyncio.Task[None] | None = None
    events: list[bytes] = field(default_factory=list)
    size: int = 0  # in bytes, once it has ended
    touched: float = 0.0
    owner: str = ""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[str, str]:
        """Where a store has it. Ids may be chosen by clients: those of one owner do not stand in the way of another's."""
        return self.owner, self.response["id"]

    @property
    def ended(self) -> bool:
        """It changes no more."""
        return self.response["status"] not in ("queued", "in_progress")

    def publish(self, events: Iterable[bytes] = ()) -> None:
        """More events, or a change of status: whoever follows goes on."""
        self.events.extend(events)
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, position: int) -> AsyncGenerator[bytes, None]:
        """The events from a position on, also those that are still to come."""
        while True:
            news = self._news
            if position < len(self.events):
                new = self.events[position:]
                position += len(new)
                yield b"".join(new)
            elif self.ended:
                return
            else:
                await news.wait()


class ResponseStore:
    """limit_bytes: of all that has ended, as JSON, the conversations included; the one unused for longest goes first. 0: nothing is kept.

    max_age_s: since it was last used. clock: seconds. One that still runs stays.
    """

    def __init__(self, limit_bytes: int, max_age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._max_age, self._clock = limit_bytes, max_age_s, clock
        self._records: OrderedDict[tuple[str, str], Record] = OrderedDict()  # least recently used first
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._limit > 0

    def get(self, response_id: str, caller: Caller, field: str = "response_id") -> Record:
        """A response that the caller sees, by its id; the caller's own, where others have the same. Raises NotFound, naming `field`."""
        self._sweep()
        record = self._records.get((caller.name, response_id))
        if record is None and caller.admin:
            record = next((one for (_, other), one in self._records.items() if other == response_id), None)
        if record is None:
            limits = f"they are kept for {self._max_age:g} s after their last use (--response-max-age), {self._limit} bytes of them (--response-store-bytes)"
            raise NotFound(f"response {shorten(response_id)} is not here: {limits if self.keeps else 'this server keeps none'}", field=field)
        self._touch(record)
        return record

    def open(self, record: Record) -> None:
        """Keep one that begins to run. Raises RequestError when its id is taken."""
        if record.key in self._records:
            raise RequestError(f"request_id gives the id {shorten(record.response['id'])}, which another response has: send another one", field="request_id")
        self._touch(record)

    def settle(self, record: Record) -> None:
        """It has ended: from now on it counts and may be dropped. One above the limit alone is dropped at once."""
        if self._records.get(record.key) is not record:
            return
        record.size = len(encode(record.response)) + len(encode(record.items)) + sum(map(len, record.events))
        self.bytes += record.size
        self._touch(record)
        self._sweep()

    def drop(self, record: Record) -> None:
        """Forget one."""
        if self._records.get(record.key) is record:
            del self._records[record.key]
            self.bytes -= record.size

    def _touch(self, record: Record) -> None:
        record.touched = self._clock()
        self._records[record.key] = record
        self._records.move_to_end(record.key)

    def _sweep(self) -> None:
        """Drop what is too old, then the oldest until the rest fits."""
        oldest = self._clock() - self._max_age
        for record in list(self._records.values()):
            if record.ended and (record.touched < oldest or self.bytes > self._limit):
                self.drop(record)
            elif record.touched >= oldest and self.bytes <= self._limit:
                break

"""Admission: which waiting request may start now.

The whole prompt is reserved, as a number of blocks, so that prompts in progress cannot take each other's room. A share of
the blocks is held back for the growth of those that run; it grows with every preemption and shrinks while there is none.
When the cache is nearly full a large request waits and smaller ones behind it may pass, at most MAX_PASSES times.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmx.errors import RequestError
from llmx.kv.manager import KVManager
from llmx.lora.slots import Adapter, AdapterSlots
from llmx.request import Request
from llmx.sched.policy import Waiting

__all__ = ["Admission"]

MAX_PASSES = 64  # requests that may pass a large one before everybody waits for it
LOOK_AHEAD = 32  # waiting requests looked at per step behind one that does not fit
MIN_HEADROOM, MAX_HEADROOM = 0.005, 0.25  # share of the blocks kept for the growth of running requests
GROWTH, DECAY = 2.0, 0.97  # per preemption, per step without one


class Admission:
    """Decides admissions from block counts alone."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._headroom = MIN_HEADROOM
        self.last_arrival: int | None = None  # set: requests that arrived later wait
        self.adapters: AdapterSlots | None = None
        self.failed: dict[Request, RequestError] = {}  # waiting requests that can never start, until they are ended

    def note_preemption(self) -> None:
        """A running request lost its blocks: admit more carefully."""
        self._headroom = min(self._headroom * GROWTH, MAX_HEADROOM)

    def note_step(self) -> None:
        """A step went by: become bolder again."""
        self._headroom = max(self._headroom * DECAY, MIN_HEADROOM)

    def candidates(self, waiting: Waiting) -> Iterable[Request]:
        """Waiting requests in the order in which they may be tried; a fresh pass per step."""
        seen = 0
        for request in list(waiting):
            if self.last_arrival is not None and request.arrival > self.last_arrival:
                continue
            yield request
            seen += 1
            if seen >= LOOK_AHEAD or request.times_passed >= MAX_PASSES:
                return

    def has_room(self, request: Request, hit: int, running: Iterable[Request]) -> bool:
        """True when the request's tokens fit beside what is promised to the running ones, and its adapter is in a slot."""
        running = list(running)
        reserved = [0] * len(self._kv.needs)
        for other in running:
            if other.in_prefill:
                for group, count in enumerate(self._kv.blocks_promised(other, len(other.tokens))):
                    reserved[group] += count
        if running:
            for group, pool in enumerate(self._kv.pools):
                reserved[group] += max(1, int(self._headroom * pool.num_blocks))
        fits = self._kv.room_for(request, len(request.tokens), hit=hit, reserved=reserved)
        return fits and (request.adapter is None or self.adapters is None or self._in_slot(request, request.adapter, self.adapters, running))

    def _in_slot(self, request: Request, adapter: Adapter, slots: AdapterSlots, running: list[Request]) -> bool:
        if request in self.failed:
            return False
        taken = slots.take(adapter, running)
        if adapter.failed is not None:
            self.failed[request] = adapter.failed
        return taken

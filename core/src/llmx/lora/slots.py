"""AdapterSlots: which adapters are in the executor's slots; the one unused for longest makes room for another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llmx.config import LoraConfig
from llmx.errors import PlatformError, RequestError, RequestFailed
from llmx.executor.adapters import LoraPart
from llmx.program.ops import Model
from llmx.request import Request

__all__ = ["Adapter", "AdapterSlots", "slot_bytes"]


@dataclass(slots=True, eq=False)
class Adapter:
    """One adapter as requests use it. What was loaded again under the same name is another one."""

    name: str
    path: str
    digest: bytes
    rank: int
    parts: dict[str, LoraPart] = field(repr=False)
    base: str = ""
    slot: int = -1  # the executor's; -1: on the host only
    pinned: bool = False
    gone: bool = False  # unloaded; requests that had begun keep it
    failed: RequestError | None = None  # why it could not be copied to a slot, the last time

    @property
    def nbytes(self) -> int:
        """Bytes of its matrices in host memory; 0 while they are not there."""
        return sum(part.nbytes for part in self.parts.values())


class AdapterSlots:
    """`count` slots of an executor. put: fill a slot; drop: empty one. Both are called between two steps."""

    def __init__(self, count: int, put: Callable[[int, Adapter], None], drop: Callable[[int], None]) -> None:
        self._put, self._drop = put, drop
        self._free = list(range(count - 1, -1, -1))
        self._resident: dict[Adapter, None] = {}  # the one used last at the end
        self.swaps = 0  # adapters brought into a slot, since the start

    @property
    def in_use(self) -> int:
        """Slots that hold an adapter."""
        return len(self._resident)

    @property
    def all_pinned(self) -> bool:
        """Whether no other adapter can get a slot until one is unloaded."""
        return not self._free and all(one.pinned for one in self._resident)

    def take(self, adapter: Adapter, running: Iterable[Request]) -> bool:
        """Bring an adapter into a slot and keep it there while a request that runs uses it.

        False: all slots are used by running requests or pinned. Where waiting does not help, `failed` of the adapter says why: all are pinned, or it could
        not be copied; then the slot is free.
        """
        adapter.failed = None
        if adapter not in self._resident:
            if self.all_pinned:
                why = f"all {len(self._resident)} slots are pinned: unload a pinned adapter, or start with a larger --max-loras"
                adapter.failed = RequestFailed(f"adapter {adapter.name[:60]!r} cannot run: {why}", field="model")
                return False
            if not self._free and not self._evict({request.adapter for request in running}):
                return False
            try:
                self._put(self._free[-1], adapter)
            except (PlatformError, MemoryError) as error:
                why = "host memory ran out" if isinstance(error, MemoryError) else str(error)
                adapter.failed = RequestFailed(f"adapter {adapter.name[:60]!r} could not be copied to a device slot: {why}", field="model")
                return False
            adapter.slot = self._free.pop()
            self.swaps += 1
        self._resident[adapter] = self._resident.pop(adapter, None)
        return True

    def _evict(self, used: set[Adapter | None]) -> bool:
        victims = [one for one in self._resident if one not in used and not one.pinned]
        if not victims:
            return False
        self._empty(next((one for one in victims if one.gone), victims[0]))
        return True

    def sweep(self, running: Iterable[Request]) -> None:
        """Empty the slots of adapters that were unloaded and that no running request uses."""
        used = {request.adapter for request in running}
        for adapter in [one for one in self._resident if one.gone and one not in used]:
            self._empty(adapter)

    def _empty(self, adapter: Adapter) -> None:
        self._drop(adapter.slot)
        del self._resident[adapter]
        self._free.append(adapter.slot)
        adapter.slot = -1


def slot_bytes(config: LoraConfig, model: Model) -> int:
    """Bytes that full slots take: of the largest rank, in float32, for every linear module of the layers. 0 where adapters are off."""
    if not config.on:
        return 0
    layers = [op for op in model.programs["main"].ops if op.kind == "linear" and op.region.block == "layer"]
    parts = {part.target: part for op in layers for held in op.weights.values() for part in held}
    return config.max_loras * config.max_rank * 4 * sum(part.rows + part.weight.shape[-1] for part in parts.values())

"""What a platform may give core's torch executor beside a device: objects that are made once, at the start, and called while steps run.

No torch type is named here: tensors and devices are those of the executor that calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from llmx.record import record

__all__ = ["NO_PARTS", "CompilerBackend", "DeviceAllocator", "DeviceParts", "GraphBackend", "GraphLimits"]


@record
class GraphLimits:
    """What a graph backend can take.

    alignment: the rows of a captured step are a multiple of this. max_graphs: how many may be captured; None: any number.
    piecewise: ops that read or write pages stay outside graphs, whatever their kernels allow.
    """

    alignment: int = 1
    max_graphs: int | None = None
    piecewise: bool = False


class GraphBackend(Protocol):
    """Records work on the device once and does it again with one call."""

    limits: GraphLimits

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call `run`, perhaps more than once, and record what its last call does.

        What comes back does that again, on the same memory with what lies in it then.

        Whatever `run` decided on the host stays as it was decided when it was recorded. Raises when the device cannot record it.
        """
        ...

    def close(self) -> None:
        """Forget every graph. Idempotent."""
        ...


class CompilerBackend(Protocol):
    """Makes one call out of a run of ops."""

    def compile(self, run: Callable[..., tuple[Any, ...]], example: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        """`run` takes tensors and gives tensors, has no other effect, and is only called with tensors of the shapes of `example`.

        What comes back gives the same results; it must not compile when it is called. Raises when the run cannot be compiled.
        """
        ...

    def finish(self) -> Mapping[str, int]:
        """Everything is compiled: keep it for the next start. Numbers for the executor's statistics, `compiled_now` (made in this start) among them."""
        ...


class DeviceAllocator(Protocol):
    """Gives memory of the device back, and takes it again, under tensors that stay the same objects."""

    def hold(self, tag: str, tensors: Iterable[Any]) -> None:
        """These tensors take memory under `tag`: "weights" or "pages"."""
        ...

    def release(self, tag: str, *, keep: bool) -> int:
        """Give the memory of a tag back; the bytes. keep: what lies in it waits in host memory, otherwise it is lost."""
        ...

    def restore(self, tag: str) -> int:
        """Take the memory of a tag again, with what was kept in it, else zeroed; the bytes. Addresses may be others than before."""
        ...


@record
class DeviceParts:
    """What the optional hooks of a platform with a torch device gave; None: core does without."""

    graphs: GraphBackend | None = None
    compiler: CompilerBackend | None = None
    allocator: DeviceAllocator | None = None


NO_PARTS = DeviceParts()

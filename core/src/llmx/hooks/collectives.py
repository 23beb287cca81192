"""What the ranks of one engine share: where they meet (ProcessGroup) and how they exchange rows (Communicator)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Protocol

from llmx.record import record

__all__ = ["COLLECTIVES", "Communicator", "ProcessGroup"]

COLLECTIVES = ("all_reduce", "all_gather", "broadcast")


@record
class ProcessGroup:
    """Where the ranks of one engine meet. Made in the process of rank 0 before the others start, and given to each with its own `rank`.

    address: text that means something to the communicator. fds: open files of rank 0's process that every rank inherits, under the same numbers.
    keep: an object that must live in the process of rank 0 as long as the group; other ranks have None. close: called there at the end.
    """

    size: int
    rank: int = 0
    address: str = ""
    fds: tuple[int, ...] = ()
    keep: Any = field(default=None, compare=False)
    close: Callable[[], None] | None = field(default=None, compare=False)


class Communicator(Protocol):
    """One rank's end. Every rank calls the same methods in the same order with arrays of the same shape; calls return when the result is there.

    Arrays are those of the executor that calls: numpy arrays, or torch tensors on its device. A result is an array of the caller's own. Sums are made in
    the order of the ranks, so that every rank has the same bits, and the same ones in every run. A call raises PlatformError when a rank is gone.
    """

    rank: int
    size: int

    def supports(self, op: str, dtype: str) -> str | None:
        """None where `op`, one of COLLECTIVES, takes arrays of `dtype` (numpy's name, "bfloat16"), otherwise why not."""
        ...

    def all_reduce(self, x: Any) -> Any:
        """The sum of all ranks' arrays: x of rank 0, plus that of rank 1, and so on."""
        ...

    def all_gather(self, x: Any) -> Any:
        """All ranks' arrays side by side along the last axis, in the order of the ranks."""
        ...

    def broadcast(self, x: Any, root: int) -> Any:
        """What rank `root` gave, on every rank."""
        ...

    def abort(self) -> None:
        """A rank is lost. Core calls this in rank 0 alone, from another thread than the one that waits. Then calls in progress on every rank, and later
        ones, raise PlatformError: because this tells the others, or because they notice by themselves.
        """
        ...

    def close(self) -> None:
        """Leave the group. Idempotent."""
        ...

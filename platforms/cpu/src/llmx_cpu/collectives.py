"""MemoryCommunicator: collectives of the ranks of one host in memory that they share, by csrc/collective.cpp. No torch."""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np

from llmx.errors import PlatformError
from llmx.hooks import COLLECTIVES, ProcessGroup
from llmx_cpu.native import library, pointer

__all__ = ["MAX_RANKS", "MemoryCommunicator", "shared_memory"]

MAX_RANKS = 64  # csrc/collective.h


def shared_memory(size: int) -> ProcessGroup:
    """A group of `size` ranks. The memory has no name: it is gone when the last rank has ended, however it ended."""
    if not 1 <= size <= MAX_RANKS:
        raise PlatformError(f"{size} ranks on one host: the CPU platform takes 1 to {MAX_RANKS}")
    fd = os.memfd_create("llmx-ranks")
    os.ftruncate(fd, library().llmx_comm_bytes(size))
    return ProcessGroup(size, fds=(fd,), close=lambda: os.close(fd))


class MemoryCommunicator:
    """llmx.hooks.Communicator over numpy arrays in any order of bytes; sums of float32. handle: what the native engine calls."""

    def __init__(self, group: ProcessGroup) -> None:
        self.rank, self.size = group.rank, group.size
        self.handle: int | None = library().llmx_comm_new(group.fds[0], group.rank, group.size)
        if not self.handle:
            raise PlatformError("the memory that the ranks share cannot be mapped: raise the process's memory limit")

    def supports(self, op: str, dtype: str) -> str | None:
        """Sums of float32; anything is gathered and broadcast."""
        if op not in COLLECTIVES:
            return f"there are {', '.join(COLLECTIVES)}"
        return f"sums of {dtype} are not there, those of float32 are" if op == "all_reduce" and dtype != "float32" else None

    def _call(self, name: str, *args: Any) -> None:
        if self.handle is None:
            raise PlatformError("this rank has left its group")
        wrong = getattr(library(), f"llmx_comm_{name}")(self.handle, *args)
        if wrong is not None:
            raise PlatformError(wrong.decode())

    def all_reduce(self, x: np.ndarray) -> np.ndarray:
        """Sum of float32. Raises PlatformError for another type."""
        if (why := self.supports("all_reduce", x.dtype.name)) is not None:
            raise PlatformError(why)
        x = np.ascontiguousarray(x)
        out = np.empty_like(x)
        self._call("all_reduce", pointer(x), pointer(out), x.size)
        return out

    def all_gather(self, x: np.ndarray) -> np.ndarray:
        """Along the last axis."""
        x = np.ascontiguousarray(x)
        out = np.empty((*x.shape[:-1], self.size * x.shape[-1]), x.dtype)
        self._call("all_gather", pointer(x), pointer(out), prod(x.shape[:-1]), x.shape[-1] * x.itemsize)
        return out

    def broadcast(self, x: np.ndarray, root: int) -> np.ndarray:
        """From one rank. Raises PlatformError for one that is not in the group."""
        if not 0 <= root < self.size:
            raise PlatformError(f"rank {root} is none of {self.size}")
        out = np.array(x, order="C")
        self._call("broadcast", pointer(out), out.nbytes, root)
        return out

    def abort(self) -> None:
        """Every rank's calls raise, whichever process makes them."""
        if self.handle is not None:
            library().llmx_comm_abort(self.handle)

    def close(self) -> None:
        """Idempotent. The native engine that uses it must be gone."""
        handle, self.handle = self.handle, None
        if handle is not None:
            library().llmx_comm_free(handle)

"""All ranks of a model in one process, a thread each: executors of their own, connected by arrays in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from llmx.errors import PlatformError
from llmx.executor import ModelBundle
from llmx.program.passes.shard import shard
from llmx.program.verify import verify

__all__ = ["ThreadCommunicator", "communicators", "in_threads", "share_of"]

T = TypeVar("T")
HANG_S = 60.0  # no test waits that long


class ThreadCommunicator:
    """llmx.hooks.collectives.Communicator between threads."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, given: dict[int, Any]) -> None:
        self.rank, self.size, self._barrier, self._given = rank, size, barrier, given

    def supports(self, op: str, dtype: str) -> str | None:
        return None

    def _all(self, x: Any) -> list[Any]:
        self._given[self.rank] = x
        try:
            self._barrier.wait(HANG_S)
            found = [self._given[rank] for rank in range(self.size)]
            self._barrier.wait(HANG_S)
        except threading.BrokenBarrierError:
            raise PlatformError("a rank is gone") from None
        return found

    def all_reduce(self, x: Any) -> Any:
        return sum(self._all(x)[1:], start=self._all(x)[0])

    def all_gather(self, x: Any) -> Any:
        return torch.cat(self._all(x), dim=-1) if isinstance(x, torch.Tensor) else np.concatenate(self._all(x), axis=-1)

    def broadcast(self, x: Any, root: int) -> Any:
        return self._all(x)[root]

    def abort(self) -> None:
        self._barrier.abort()

    def close(self) -> None:
        pass


def communicators(size: int) -> list[ThreadCommunicator]:
    """One end for each rank."""
    barrier, given = threading.Barrier(size), dict[int, Any]()
    return [ThreadCommunicator(rank, size, barrier, given) for rank in range(size)]


def in_threads(run: Callable[[int], T], ends: Sequence[Any]) -> list[T]:
    """run(rank) of every rank at the same time; when one raises, the others are let go and the error is raised."""

    def guarded(rank: int) -> T:
        try:
            return run(rank)
        except BaseException:
            ends[rank].abort()
            raise

    with ThreadPoolExecutor(len(ends)) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(len(ends))]
        errors = [error for future in futures if (error := future.exception(HANG_S)) is not None]
        for error in sorted(errors, key=lambda error: "gone" in str(error)):
            raise error
        return [future.result() for future in futures]


def share_of(bundle: ModelBundle, rank: int, size: int) -> ModelBundle:
    """The bundle with one rank's Programs, checked."""
    model = shard(bundle.model, rank, size)
    verify(model)
    return replace(bundle, model=model)

"""Sleeper: an executor's sleep: weights go to host memory, pages are given up, graphs are forgotten; waking brings all but the pages' contents back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from llmx.executor.base import Reply
from llmx.executor.torch.storage import tensors_in
from llmx.hooks.devices import DeviceAllocator

__all__ = ["Sleeper"]


class Sleeper:
    """Of one executor. allocator None: the platform gave none, and sleep is refused."""

    def __init__(self, allocator: DeviceAllocator | None) -> None:
        self._allocator = allocator
        self.asleep = False

    def hold(self, weights: Iterable[Any], pages: Iterable[torch.Tensor]) -> None:
        """What the memory is taken by. weights: whatever kernels packed."""
        if self._allocator is not None:
            self._allocator.hold("weights", tensors_in(list(weights)))
            self._allocator.hold("pages", pages)

    def sleep(self, level: int) -> Reply:
        """Level 1. The reply names the bytes that the device has back."""
        if self._allocator is None:
            return Reply(False, error="sleep: the platform gives no allocator (llmx_allocator), so weights and pages stay where they are")
        if level != 1:
            return Reply(False, error=f"sleep: level is {level!r}; there is level 1 alone: weights wait in host memory, pages are given up")
        if self.asleep:
            return Reply(False, error="sleep: the executor sleeps already")
        self.asleep = True
        return Reply(True, {"released_bytes": self._allocator.release("weights", keep=True) + self._allocator.release("pages", keep=False)})

    def wake(self) -> Reply:
        """The weights are back, pages are zero."""
        if self._allocator is None or not self.asleep:
            return Reply(False, error="wake: the executor does not sleep")
        restored = self._allocator.restore("weights") + self._allocator.restore("pages")
        self.asleep = False
        return Reply(True, {"restored_bytes": restored})

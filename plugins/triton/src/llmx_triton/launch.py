"""Tiles: a Triton function, compiled for a device; with TRITON_INTERPRET=1 in the environment Triton interprets it, also on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from llmx.errors import PlatformError

__all__ = ["Tiles", "power_of_two"]


class Tiles:
    """Decorates the definition of a Triton function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._tiles = triton.jit(function)

    def launch(self, grid: tuple[int, ...], on: torch.Tensor, *arguments: Any, **constants: Any) -> None:
        """Run every program of `grid` where the tensor `on` lies. An empty grid is nothing to do. Raises PlatformError on a CPU without the interpreter."""
        if on.is_cpu and not triton.knobs.runtime.interpret:
            raise PlatformError("kernels in Triton run on torch's CPU device in its interpreter alone: set TRITON_INTERPRET=1, or switch these kernels off")
        if all(grid):
            self._tiles[grid](*arguments, **constants)


def power_of_two(number: int, least: int = 1) -> int:
    """The least power of two that is not below `number` and `least`."""
    size = least
    while size < number:
        size *= 2
    return size

"""Inputs of a Program as torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from llmx.executor.torch.kernel import Tensor
from llmx.program.ops import Program

__all__ = ["as_index", "positions_input"]


def positions_input(program: Program, positions: Tensor) -> Tensor:
    """positions [T] as the Program wants them: one row for each section of its rope (text: all rows equal)."""
    value = program.inputs.get("positions")
    if value is not None and len(value.shape) == 2 and isinstance(value.shape[0], int):
        return positions.expand(value.shape[0], -1)
    return positions


def as_index(array: Any, device: torch.device) -> Tensor:
    """i64 on the device."""
    return torch.as_tensor(array, dtype=torch.int64, device=device)

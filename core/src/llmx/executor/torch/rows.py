"""Rows: which rows a step has and whose they are, as kernels see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from llmx.executor.slots import RequestRows
from llmx.executor.torch.layout import RowLayout
from llmx.program.ops import Dim, Sym

__all__ = ["Rows"]


@dataclass(slots=True)
class Rows:
    """All rows of a step, in order. sizes: T, N and R as numbers (R: of the block of head rows at hand).

    places: kept by pages, so that layers of one group look up block ids once. block_tokens: per KV group. fixed: the layout in memory that
    graphs were recorded with; of such rows `requests` is empty.
    """

    requests: tuple[RequestRows, ...]
    device: torch.device
    sizes: dict[str, int]
    block_tokens: tuple[int, ...] = ()
    fixed: RowLayout | None = None
    places: dict[int, Any] = field(default_factory=dict)

    @property
    def layout(self) -> RowLayout:
        """Whose rows these are, on the device; made when it is first asked for."""
        if self.fixed is None:
            self.fixed = RowLayout.of(self.requests, self.block_tokens, self.device)
        return self.fixed

    def size(self, dim: Dim) -> int:
        """A dimension as a number."""
        if isinstance(dim, int):
            return dim
        return self.sizes[dim.name] if isinstance(dim, Sym) else self.sizes[dim.sym.name] // dim.by

    def positions(self) -> torch.Tensor:
        """i64 [T]: the position of each row."""
        ranges = [torch.arange(one.start, one.end) for one in self.requests]
        return torch.cat(ranges).to(self.device) if ranges else torch.empty(0, dtype=torch.int64, device=self.device)

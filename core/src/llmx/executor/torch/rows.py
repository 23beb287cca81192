"""Rows: which rows a step has and whose they are, as kernels see it."""

from __future__ import annotations

from collections.abc import Hashable
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

    places: kept by pages and kernels, so that layers of one group look up block ids once. block_tokens: per KV group. fixed: the layout in memory that
    graphs were recorded with; of such rows `requests` is empty.
    """

    requests: tuple[RequestRows, ...]
    device: torch.device
    sizes: dict[str, int]
    block_tokens: tuple[int, ...] = ()
    fixed: RowLayout | None = None
    places: dict[Hashable, Any] = field(default_factory=dict)
    communicator: Any = None  # of a rank among several (llmx.hooks.collectives)
    head: torch.Tensor | None = None  # i64 [R]: token row of each head row of the block at hand

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

    @property
    def uses_adapters(self) -> bool:
        """True when a request of these rows has one."""
        return any(one.lora >= 0 for one in self.requests)

    def adapted(self, *, at_head: bool) -> list[tuple[int, torch.Tensor]]:
        """(slot, i64 rows that use it) of each adapter. at_head: rows of the block of head rows."""
        if not self.uses_adapters:
            return []
        of = torch.cat([torch.full((one.q,), one.lora, dtype=torch.int64) for one in self.requests]).to(self.device)
        if at_head and self.head is not None:
            of = of[self.head]
        return [(slot, torch.nonzero(of == slot).flatten()) for slot in sorted({one.lora for one in self.requests if one.lora >= 0})]

    def positions(self) -> torch.Tensor:
        """i64 [T]: the position of each row."""
        ranges = [torch.arange(one.start, one.end) for one in self.requests]
        return torch.cat(ranges).to(self.device) if ranges else torch.empty(0, dtype=torch.int64, device=self.device)

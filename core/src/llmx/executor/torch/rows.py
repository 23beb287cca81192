"""Rows: which rows a step has and whose they are, as kernels see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from llmx.program.ops import Dim, Sym

__all__ = ["RequestRows", "Rows"]


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of one request: rows[first : first + q] are its tokens at positions start .. start + q - 1.

    drafts: how many of them, at the end, are guesses. tables: per KV group the request's block table, i32.
    """

    slot: int
    first: int
    q: int
    start: int
    drafts: int
    prompt_len: int
    tables: tuple[np.ndarray, ...]

    @property
    def end(self) -> int:
        """Tokens of the request once these rows are computed."""
        return self.start + self.q

    @property
    def span(self) -> slice:
        """Where its rows are among the step's."""
        return slice(self.first, self.first + self.q)


@dataclass(slots=True)
class Rows:
    """All rows of a step, in order. sizes: T, N and R as numbers (R: of the block of head rows at hand).

    places: kept by pages, so that layers of one group look up block ids once.
    """

    requests: tuple[RequestRows, ...]
    device: torch.device
    sizes: dict[str, int]
    places: dict[int, Any] = field(default_factory=dict)

    def size(self, dim: Dim) -> int:
        """A dimension as a number."""
        if isinstance(dim, int):
            return dim
        return self.sizes[dim.name] if isinstance(dim, Sym) else self.sizes[dim.sym.name] // dim.by

    def positions(self) -> torch.Tensor:
        """i64 [T]: the position of each row."""
        ranges = [torch.arange(one.start, one.end) for one in self.requests]
        return torch.cat(ranges).to(self.device) if ranges else torch.empty(0, dtype=torch.int64, device=self.device)



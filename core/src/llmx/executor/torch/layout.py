"""RowLayout: whose rows a step has, as tensors on the device: what kernels read that do not look at a request on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from llmx.record import record

if TYPE_CHECKING:
    from llmx.executor.slots import RequestRows

__all__ = ["RowLayout"]


@record
class RowLayout:
    """Of N requests with T rows, padded or not; a padded request has no rows and no tokens, a padded row has no place.

    starts: i32 [N + 1], the first row of each request, then the end. lengths: i32 [N], tokens of each request once these rows are computed.
    Per KV group tables: i32 [N, blocks], block ids, and places: i64 [T], block id x block tokens + offset of the row's own token, -1 without.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    tables: tuple[torch.Tensor, ...]
    places: tuple[torch.Tensor, ...]

    @classmethod
    def empty(cls, rows: int, requests: int, blocks: Sequence[int], device: torch.device) -> RowLayout:
        """Room for so many rows and requests, nobody's yet. blocks: the length of a block table, per group."""

        def make(*shape: int, dtype: torch.dtype = torch.int32, value: int = 0) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        places = tuple(make(rows, dtype=torch.int64, value=-1) for _ in blocks)
        return cls(make(requests + 1), make(requests), tuple(make(requests, count) for count in blocks), places)

    @classmethod
    def of(cls, requests: Sequence[RequestRows], block_tokens: Sequence[int], device: torch.device) -> RowLayout:
        """That of a step, as large as it needs to be."""
        rows = sum(one.q for one in requests)
        layout = cls.empty(rows, len(requests), [len(table) for table in requests[0].tables] if requests else [0] * len(block_tokens), device)
        layout.fill(requests, block_tokens)
        return layout

    def fill(self, requests: Sequence[RequestRows], block_tokens: Sequence[int]) -> None:
        """Write a step's requests into the tensors; what is left over becomes padding."""
        count, rows = len(requests), sum(one.q for one in requests)
        starts = np.full(len(self.starts), rows, np.int32)
        starts[:count] = [one.first for one in requests]
        lengths = np.zeros(len(self.lengths), np.int32)
        lengths[:count] = [one.end for one in requests]
        self.starts.copy_(torch.from_numpy(starts))
        self.lengths.copy_(torch.from_numpy(lengths))
        for group, (tables, places, tokens) in enumerate(zip(self.tables, self.places, block_tokens, strict=True)):
            given = np.zeros(tuple(tables.shape), np.int32)
            own = np.full(len(places), -1, np.int64)
            for index, one in enumerate(requests):
                table = one.tables[group]
                given[index] = np.maximum(table, 0)
                positions = np.arange(one.start, one.end)
                block = np.minimum(positions // tokens, len(table) - 1)  # of a recurrent State the table is short, and no place is read
                own[one.span] = np.where(table[block] > 0, table[block].astype(np.int64) * tokens + positions % tokens, -1)
            tables.copy_(torch.from_numpy(given))
            places.copy_(torch.from_numpy(own))

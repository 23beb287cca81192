"""NativePages: the blocks that a step reads of the torch executor's pages, in the layout of csrc/attention.h."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.record import record

__all__ = ["NativePages"]

_TYPES = {torch.float32: 0, torch.bfloat16: 1}  # csrc/attention.h


@record
class NativePages:
    """Of one KV group in one step. blocks: i64, ids of the blocks that are read. table: i32 [N, blocks], places among them, from 1; 0: not read.

    slot, counts, starts: i32 [N], the row of `table`, rows and first position of each request.
    """

    kv_type: int
    blocks: torch.Tensor
    table: np.ndarray
    slot: np.ndarray
    counts: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, rows: Rows, state: StatePages) -> NativePages:
        """Made once per step for all layers of the group. Raises PlatformError for a block that a request was never given."""
        key = "native", state.group
        found: Any = rows.places.get(key)
        if found is None:
            found = rows.places[key] = cls._made(rows, state)
        made: NativePages = found
        return made

    @classmethod
    def _made(cls, rows: Rows, state: StatePages) -> NativePages:
        requests, size = rows.requests, state.block_tokens
        table = np.zeros((len(requests), max(-(-one.end // size) for one in requests)), np.int32)
        read, count = [], 0
        for index, one in enumerate(requests):
            first = state.first_seen(one) // size
            ids = state.given(one, slice(first, -(-one.end // size)))
            table[index, first : first + len(ids)] = np.arange(count + 1, count + 1 + len(ids))
            read.append(ids)
            count += len(ids)
        counts, starts = (np.array([getattr(one, name) for one in requests], np.int32) for name in ("q", "start"))
        blocks = torch.from_numpy(np.concatenate(read).astype(np.int64))
        return cls(_TYPES[state.tensors[0].dtype], blocks, table, np.arange(len(requests), dtype=np.int32), counts, starts)

    def gathered(self, state: StatePages) -> torch.Tensor:
        """[1 + blocks, elements of a block]: keys of all heads, then values of all heads; the first is zero."""
        keys, values = (tensor[self.blocks] for tensor in state.tensors)  # [n, 16, K, D]
        if self.kv_type:  # pairs of elements of a key, and of tokens of a value, lie together
            keys = keys.view(*keys.shape[:-1], -1, 2).permute(0, 2, 3, 1, 4)
            values = values.view(len(values), -1, 2, *values.shape[2:]).permute(0, 3, 1, 4, 2)
        else:
            keys, values = keys.permute(0, 2, 3, 1), values.permute(0, 2, 1, 3)
        wide, count = keys[0].numel(), len(self.blocks)
        memory = keys.new_empty((1 + count, wide + values[0].numel()))
        memory[0] = 0
        memory[1:, :wide].view(keys.shape).copy_(keys)
        memory[1:, wide:].view(values.shape).copy_(values)
        return memory

"""Pages: KV memory as torch tensors. A page of a State is [block tokens, ...] of each tensor it keeps; a recurrent State's is one place."""

from __future__ import annotations

import numpy as np
import torch

from llmx.errors import PlatformError
from llmx.executor.page_shapes import page_moves, page_shapes
from llmx.executor.slots import RequestRows
from llmx.executor.torch.rows import Rows
from llmx.kv.spec import KVPlan, KVSpec
from llmx.record import record

__all__ = ["PAGE_TYPES", "Pages", "StatePages"]

PAGE_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f8": torch.float8_e4m3fn}
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


@record
class StatePages:
    """The pages of one State. tensors: [blocks, block tokens, ...] each; [blocks, ...] for a recurrent State."""

    name: str
    spec: KVSpec
    group: int
    block_tokens: int
    tensors: tuple[torch.Tensor, ...]

    def write(self, rows: Rows, *values: torch.Tensor) -> None:
        """Store the rows of every request at their positions; one value [T, ...] per tensor of a page."""
        if self.group not in rows.places:
            rows.places[self.group] = self._places(rows)
        block, offset = rows.places[self.group]
        for tensor, value in zip(self.tensors, values, strict=True):
            kept = value.clamp(-_LARGEST, _LARGEST) if tensor.dtype == PAGE_TYPES["f8"] else value
            tensor[block, offset] = kept.reshape(-1, *tensor.shape[2:]).to(tensor.dtype)

    def _places(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Block id and place inside the block of every row."""
        blocks, offsets = [], []
        for one in rows.requests:
            positions = np.arange(one.start, one.end)
            blocks.append(_given(self.name, one, one.tables[self.group][positions // self.block_tokens]))
            offsets.append(positions % self.block_tokens)
        return tuple(torch.from_numpy(np.concatenate(part).astype(np.int64)).to(rows.device) for part in (blocks, offsets))  # type: ignore[return-value]

    def read(self, one: RequestRows) -> tuple[int, tuple[torch.Tensor, ...]]:
        """(position of the first token, float32 [tokens, ...] of each tensor) of all that the request's rows may see."""
        first = self.first_seen(one) // self.block_tokens
        ids = self.given(one, slice(first, -(-one.end // self.block_tokens)))
        index = torch.from_numpy(ids.astype(np.int64)).to(self.tensors[0].device)
        begin, count = first * self.block_tokens, one.end - first * self.block_tokens
        return begin, tuple(t[index].flatten(0, 1)[:count].float() for t in self.tensors)

    def first_seen(self, one: RequestRows) -> int:
        """Position of the first token that the request's rows may see."""
        return max(one.start - self.spec.window + 1, 0) if self.spec.kind == "sliding" and self.spec.window else 0

    def given(self, one: RequestRows, blocks: slice) -> np.ndarray:
        """Block ids of a stretch of the request's table. Raises PlatformError for a block that it was never given."""
        return _given(self.name, one, one.tables[self.group][blocks])

    def place(self, one: RequestRows, index: int = 0) -> int:
        """Block id of a recurrent State's place: index 0 the accepted one, 1.. after so many drafts."""
        return int(self.given(one, slice(index, index + 1))[0])


def _given(name: str, one: RequestRows, ids: np.ndarray) -> np.ndarray:
    """The same ids. Raises PlatformError for a block that the request was never given."""
    if (ids <= 0).any():
        raise PlatformError(f"state {name!r}: slot {one.slot} reads or writes a block that it was not given (blocks {ids.tolist()})")
    return ids


class Pages:
    """The pages of all groups, and the operations of a step on them."""

    def __init__(self, plan: KVPlan, device: torch.device) -> None:
        self.states: dict[str, StatePages] = {}
        self._groups: list[list[StatePages]] = []
        self._blocks = [group.num_blocks for group in plan.groups]
        for index, group in enumerate(plan.groups):
            spec, tokens, dtype = group.need.spec, group.need.block_tokens, PAGE_TYPES[group.need.dtype]
            lead = (group.num_blocks,) if spec.kind == "state" else (group.num_blocks, tokens)
            made = [
                StatePages(name, spec, index, tokens, tuple(torch.zeros((*lead, *shape), dtype=dtype, device=device) for shape in page_shapes(spec)))
                for name in group.need.states
            ]
            self._groups.append(made)
            self.states.update({one.name: one for one in made})

    def run(self, ops: np.ndarray, tables: list[np.ndarray]) -> None:
        """Carry out kv_ops in order. tables: per group the block tables [slots, blocks]. Raises PlatformError for a transfer."""
        for group, src, dst in page_moves(ops, tables, self._blocks):
            for tensor in (t for state in self._groups[group] for t in state.tensors):
                tensor[dst] = 0 if src < 0 else tensor[src]

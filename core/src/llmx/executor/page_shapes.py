"""What a page of a State holds where an executor in Python keeps pages as plain arrays, and which groups its States form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from llmx.batch import KvOp
from llmx.errors import PlatformError, ProgramError
from llmx.executor.draft_shape import hidden_bytes, hidden_group
from llmx.kv.spec import BLOCK_TOKENS, GroupNeed, KVSpec
from llmx.program.ops import Model, State

__all__ = ["PAGE_BYTES", "group_needs", "page_moves", "page_shapes"]

PAGE_BYTES = {"f32": 4, "bf16": 2, "f8": 1}  # bytes of an element


def page_shapes(spec: KVSpec) -> tuple[tuple[int, ...], ...]:
    """What is kept per token (per request for kind "state"): one shape per tensor."""
    if spec.kind == "state":
        return spec.state
    if spec.kind == "latent":
        return ((spec.kv_heads * spec.head_dim,),)
    if spec.kind in ("full", "sliding", "chunked"):
        return ((spec.kv_heads, spec.head_dim), (spec.kv_heads, spec.v_head_dim))
    raise ProgramError(f"there are no pages of kind {spec.kind!r}; there are full, sliding, chunked, latent and state")


def group_needs(model: Model, page_type: str) -> list[GroupNeed]:
    """One need per distinct KVSpec, in order of first use. Recurrent States are float32 whatever the pages are, and so are rows kept for a drafter."""
    groups: dict[KVSpec, list[State]] = {}
    for state in model.states.values():
        groups.setdefault(state.spec, []).append(state)
    needs, kept = [], hidden_group(groups)
    for index, (spec, states) in enumerate(groups.items()):
        tokens, dtype = (1, "f32") if spec.kind == "state" else (BLOCK_TOKENS, page_type)
        size = sum(map(prod, page_shapes(spec))) * PAGE_BYTES[dtype] * tokens * len(states) + (hidden_bytes(model) if index == kept else 0)
        needs.append(GroupNeed(spec, tuple(s.name for s in states), tokens, size, dtype, layer_major=True))
    return needs


def page_moves(ops: np.ndarray, tables: Sequence[np.ndarray], blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(group, source block, destination block) of each of Step.kv_ops, in order; source -1: the destination becomes zero.

    tables: per group the block tables [slots, blocks]; blocks: how many each group has. Raises PlatformError for a transfer, and for a block that is none.
    """
    for op, group, src, dst in ops.tolist():
        if op in (KvOp.LOAD, KvOp.STORE):
            raise PlatformError(f"the executor has no transfer store: {KvOp(op).name} of group {group}")
        if op == KvOp.STATE_COMMIT:  # src: which of the places 0..k is accepted, dst: the slot
            src, dst = int(tables[group][dst, src]), int(tables[group][dst, 0])
        if not 0 < dst < blocks[group] or not 0 <= src < blocks[group]:
            name = f"{KvOp(op).name} of group {group}"
            raise PlatformError(f"{name} names block {src} or {dst}; there are 1..{blocks[group] - 1}, and block 0 is never written")
        yield group, -1 if op == KvOp.ZERO else src, dst

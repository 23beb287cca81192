"""Pages: KV memory as arrays. A page of a State is [block tokens, ...] of each tensor it keeps; a recurrent State's is one place.

The arrays are given to every compiled call and taken back from it (donated), so a step changes them in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from llmx.errors import PlatformError
from llmx.executor import GroupPlan, KVPlan
from llmx.executor.page_shapes import page_shapes
from llmx.executor.slots import RequestRows
from llmx_tpu.mesh import Mesh
from llmx_tpu.rows import Rows

__all__ = ["MOVES", "Held", "check_blocks", "empty_pages", "move_pages", "padded_moves", "write_rows"]

PAGE_TYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}
MOVES = 32  # page operations of a group that one call carries out

Held = list[tuple[jax.Array, ...]]  # per KV group: the arrays of its States, one State's blocks after the other's


def empty_pages(plan: KVPlan, mesh: Mesh) -> Held:
    """Zeroed pages of every group: [blocks of all its States, block tokens, ...]; without the second axis for recurrent ones."""
    pages: Held = []
    for group in plan.groups:
        spec, dtype = group.need.spec, PAGE_TYPES[group.need.dtype]
        count = group.num_blocks * len(group.need.states)
        lead = (count,) if spec.kind == "state" else (count, group.need.block_tokens)
        pages.append(tuple(mesh.zeros((*lead, *shape), dtype, heads=spec.kind not in ("state", "latent")) for shape in page_shapes(spec)))
    return pages


def write_rows(rows: Rows, state: str, *values: jax.Array) -> None:
    """Store the rows of every request at their positions; one value [T, ...] per array of a page. Padding rows write nothing."""
    arrays, table = rows.arrays(state), rows.table(state)
    tokens, count = arrays[0].shape[1], rows.sizes["N"]
    block = table[jnp.minimum(rows.owner, count - 1), rows.positions // tokens]
    block = jnp.where((rows.owner < count) & (block > 0), block, arrays[0].shape[0])  # past the end: dropped
    offset = rows.positions % tokens
    stored = [value.reshape(-1, *array.shape[2:]).astype(array.dtype) for array, value in zip(arrays, values, strict=True)]
    rows.replace(state, tuple(array.at[block, offset].set(value, mode="drop") for array, value in zip(arrays, stored, strict=True)))


def check_blocks(plan: KVPlan, requests: Sequence[RequestRows]) -> None:
    """Raise PlatformError for a row whose page, or one that it reads, its request was never given."""
    for index, group in enumerate(plan.groups):
        for one in requests:
            ids = _needed(group, one, one.tables[index])
            if (ids <= 0).any():
                name = group.need.states[0]
                raise PlatformError(f"state {name!r}: slot {one.slot} reads or writes a block that it was not given (blocks {ids.tolist()})")


def _needed(group: GroupPlan, one: RequestRows, table: np.ndarray) -> np.ndarray:
    spec, tokens = group.need.spec, group.need.block_tokens
    if spec.kind == "state":
        return table[: 1 + one.drafts]
    seen = max(one.start - spec.window + 1, 0) if spec.kind == "sliding" and spec.window else 0
    return table[seen // tokens : -(-one.end // tokens)]


def padded_moves(moves: Sequence[tuple[int, int, int]], plan: KVPlan) -> list[np.ndarray]:
    """i32 [groups, MOVES, 2] per call: (source, destination) of (group, source, destination) moves, in order; source -1: zero; destination -1: none."""
    calls: list[np.ndarray] = []
    used = [0] * len(plan.groups)
    for group, src, dst in moves:
        call, at = divmod(used[group], MOVES)
        if call == len(calls):
            calls.append(np.full((len(plan.groups), MOVES, 2), -1, np.int32))
        calls[call][group, at] = src, dst
        used[group] += 1
    return calls


def move_pages(plan: KVPlan, pages: Held, moves: jax.Array) -> Held:
    """The pages after the moves [groups, MOVES, 2] of one call."""

    def one(array: jax.Array, of_group: jax.Array, blocks: int) -> jax.Array:
        begins = jnp.arange(array.shape[0] // blocks) * blocks  # the same block of every State

        def step(i: jax.Array, array: jax.Array) -> jax.Array:
            src, dst = of_group[i, 0], of_group[i, 1]
            value = jnp.where(src < 0, 0, array[begins + jnp.maximum(src, 0)]).astype(array.dtype)
            return array.at[jnp.where(dst < 0, array.shape[0], begins + dst)].set(value, mode="drop")

        return jax.lax.fori_loop(0, (of_group[:, 1] >= 0).sum(), step, array)

    return [tuple(one(array, moves[index], group.num_blocks) for array in pages[index]) for index, group in enumerate(plan.groups)]

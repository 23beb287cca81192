"""Paged attention as a Pallas kernel: a grid over tiles of rows and the blocks of their requests, each block fetched by its id in the block table.

Off TPUs it runs in Pallas' interpreter. Shape letters: L tiles, K kv heads, M rows of a tile times query heads of a kv head, B tokens of a block,
D head size, V value head size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from llmx.program.attrs import AttentionAttrs, AttnSpec
from llmx_tpu.kernel import Array, Bound, reference
from llmx_tpu.rows import TILE, Rows

__all__ = ["attention", "paged_attention"]


@reference()
def attention(op: Bound, rows: Rows, q: Array, k: Array | None = None, v: Array | None = None) -> Array:
    """Causal attention over the pages of each request: window and soft cap, no other mask."""
    a: AttentionAttrs = op.attrs
    s, total = a.spec, q.shape[0]
    keys, values = rows.arrays(op.states[0])
    table = rows.table(op.states[0])
    at = rows.tile_first[:, None] + jnp.arange(TILE)
    there = jnp.arange(TILE) < rows.tile_rows[:, None]
    index = jnp.minimum(at, total - 1)
    share = s.q_heads // s.kv_heads
    tiles = q[index].reshape(-1, TILE, s.kv_heads, share, s.head_dim).transpose(0, 2, 1, 3, 4).reshape(-1, s.kv_heads, TILE * share, s.head_dim)
    of_tiles = jnp.stack([rows.positions[index[:, 0]], rows.tile_rows])
    o = paged_attention(s, tiles, keys, values, table[rows.tile_request], of_tiles, interpret=rows.interpret)
    o = o.reshape(-1, s.kv_heads, TILE, share, s.v_head_dim).transpose(0, 2, 1, 3, 4).reshape(-1, TILE, s.q_heads * s.v_head_dim)
    return jnp.zeros((total, s.q_heads * s.v_head_dim)).at[jnp.where(there, at, total)].set(o, mode="drop")


def paged_attention(s: AttnSpec, q: Array, keys: Array, values: Array, ids: Array, tiles: Array, *, interpret: bool) -> Array:
    """f32 [L, K, M, V] of q [L, K, M, D] over pages keys [blocks, B, K, D] and values [blocks, B, K, V].

    ids i32 [L, blocks]: the block table of each tile's request. tiles i32 [2, L]: position of the first row, and how many rows there are (0: padding).
    """
    count, heads, lines, size = q.shape
    block, wide = keys.shape[1], values.shape[3]

    def page(tile: Any, j: Any, ids: Any, tiles: Any) -> tuple[Any, int, int, int]:
        return ids[tile, j], 0, 0, 0

    def whole(tile: Any, j: Any, ids: Any, tiles: Any) -> tuple[Any, int, int, int]:
        return tile, 0, 0, 0

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(count, ids.shape[1]),
        in_specs=[
            pl.BlockSpec((1, heads, lines, size), whole),
            pl.BlockSpec((1, block, heads, size), page),
            pl.BlockSpec((1, block, heads, wide), page),
        ],
        out_specs=pl.BlockSpec((1, heads, lines, wide), whole),
        scratch_shapes=[
            pltpu.VMEM((heads, lines, 1), jnp.float32),
            pltpu.VMEM((heads, lines, 1), jnp.float32),
            pltpu.VMEM((heads, lines, wide), jnp.float32),
        ],
    )
    call = pl.pallas_call(
        partial(_block, s, lines // TILE),
        grid_spec=grid,
        out_shape=jax.ShapeDtypeStruct((count, heads, lines, wide), jnp.float32),
        interpret=interpret,
    )
    found: Array = call(ids, tiles, q, keys, values)
    return found


def _block(s: AttnSpec, share: int, ids: Any, tiles: Any, q: Any, k: Any, v: Any, out: Any, top: Any, weight: Any, sums: Any) -> None:
    """One block of tokens for one tile: the running maximum, weight and weighted values; the last block writes the result."""
    tile, j = pl.program_id(0), pl.program_id(1)
    block = k.shape[1]
    position, used, first = tiles[0, tile], tiles[1, tile], j * block

    @pl.when(j == 0)
    def _() -> None:
        top[...] = jnp.full(top.shape, -jnp.inf, jnp.float32)
        weight[...] = jnp.zeros(weight.shape, jnp.float32)
        sums[...] = jnp.zeros(sums.shape, jnp.float32)

    reached = (first < position + used) & (used > 0)
    if s.window is not None:
        reached = reached & (first + block > position - s.window + 1)

    @pl.when(reached)
    def _() -> None:
        lines = q.shape[2]
        row = jax.lax.broadcasted_iota(jnp.int32, (lines, block), 0) // share
        at, token = position + row, first + jax.lax.broadcasted_iota(jnp.int32, (lines, block), 1)
        seen = (token <= at) & (row < used)
        if s.window is not None:
            seen = seen & (at - token < s.window)
        exists = first + jax.lax.broadcasted_iota(jnp.int32, (block, 1), 0) < position + used
        for head in range(s.kv_heads):
            scores = _dot(q[0, head] * s.scale, k[0, :, head].astype(jnp.float32).T)
            if s.soft_cap is not None:
                scores = s.soft_cap * jnp.tanh(scores / s.soft_cap)
            scores = jnp.where(seen, scores, -jnp.inf)
            new = jnp.maximum(top[head], scores.max(-1, keepdims=True))
            safe = jnp.where(new == -jnp.inf, 0.0, new)
            old, part = jnp.exp(top[head] - safe), jnp.exp(scores - safe)
            weight[head] = weight[head] * old + part.sum(-1, keepdims=True)
            sums[head] = sums[head] * old + _dot(part, jnp.where(exists, v[0, :, head].astype(jnp.float32), 0.0))
            top[head] = new

    @pl.when(j == pl.num_programs(1) - 1)
    def _() -> None:
        out[0] = jnp.where(weight[...] > 0, sums[...] / jnp.maximum(weight[...], 1e-37), 0.0)


def _dot(a: Any, b: Any) -> Any:
    return jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)

"""Paged attention in jax.numpy: tiles of a request's rows against chunks of its tokens, with a running softmax.

Both loops run as long as the step asks for, so one compiled program serves every length. Shape letters: T rows, G tiles taken together, R rows of
a tile, C tokens of a chunk, H query heads, K kv heads, D head size, V value head size.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from llmx.program.attrs import AttnSpec
from llmx.record import record
from llmx_tpu.kernel import Array
from llmx_tpu.rows import TILE, Rows

__all__ = ["Keys", "attend", "own_keys", "paged_keys", "visible"]

_TOGETHER = 8  # tiles
_CHUNK = 128  # tokens


@record
class Keys:
    """Where keys and values come from. fetch(request [G], chunk) -> k [G, C, K, D], v [G, C, K, V], position [G, C], there [G, C], segment [G, C]."""

    tokens: int
    fetch: Callable[[Array, Array], tuple[Array, Array, Array, Array, Array]]
    relative: bool  # chunks count from the request's first row of the step, not from its first token


def paged_keys(rows: Rows, state: str, split: Callable[..., tuple[Array, Array]] = lambda k, v: (k, v)) -> Keys:
    """Keys and values in the pages of a State. split: the arrays of gathered pages [G, C, ...] as k and v."""
    arrays, table = rows.arrays(state), rows.table(state)
    block = arrays[0].shape[1]
    blocks = min(max(_CHUNK // block, 1), table.shape[1])
    count = blocks * block

    def fetch(request: Array, chunk: Array) -> tuple[Array, Array, Array, Array, Array]:
        index = chunk * blocks + jnp.arange(blocks)
        ids = table[request[:, None], jnp.minimum(index, table.shape[1] - 1)[None]]
        pages = [array[ids].reshape(len(request), count, *array.shape[2:]).astype(jnp.float32) for array in arrays]
        position = jnp.broadcast_to(chunk * count + jnp.arange(count), (len(request), count))
        k, v = split(*pages)
        return k, v, position, position < rows.end[request][:, None], jnp.zeros_like(position)

    return Keys(count, fetch, relative=False)


def own_keys(rows: Rows, k: Array, v: Array, segments: Array | None) -> Keys:
    """Keys and values [T, ...] of the step itself."""
    count = min(_CHUNK, k.shape[0])

    def fetch(request: Array, chunk: Array) -> tuple[Array, Array, Array, Array, Array]:
        offset = jnp.broadcast_to(chunk * count + jnp.arange(count), (len(request), count))
        at = jnp.minimum(rows.first[request][:, None] + offset, k.shape[0] - 1)
        segment = jnp.zeros_like(at) if segments is None else segments[at]
        return k[at], v[at], rows.start[request][:, None] + offset, offset < rows.q[request][:, None], segment

    return Keys(count, fetch, relative=True)


def visible(s: AttnSpec, i: Array, j: Array, prompt_len: Array, same_segment: Array | None) -> Array:
    """bool, broadcast: the row at position i sees the token at position j."""
    if s.mask == "causal":
        seen = j <= i
    elif s.mask == "prefix":
        seen = (j <= i) | (j < prompt_len)  # every row sees the whole prompt
    elif s.mask == "block" and same_segment is not None:
        seen = same_segment
    else:  # bidirectional; a block mask with chunk is cut below
        seen = jnp.ones(jnp.broadcast_shapes(i.shape, j.shape), bool)
    if s.window is not None:
        seen = seen & (i - j < s.window)
    if s.chunk is not None:
        seen = seen & (i // s.chunk == j // s.chunk)
    return seen


def attend(
    s: AttnSpec, rows: Rows, q: Array, keys: Keys, *, sinks: Array | None = None, slopes: Array | None = None, segments: Array | None = None
) -> tuple[Array, Array]:
    """(o [T, H V], log-sum-exp [T, H]) of q [T, H, D]; query head h reads kv head h // (H / K). Padding rows get zeros."""
    total, share = q.shape[0], s.q_heads // s.kv_heads
    groups = -(-rows.tile_request.shape[0] // _TOGETHER)
    pad = groups * _TOGETHER - rows.tile_request.shape[0]
    request_of, first_of, rows_of = (jnp.pad(x, (0, pad)) for x in (rows.tile_request, rows.tile_first, rows.tile_rows))
    sink = None if sinks is None else sinks.reshape(1, 1, s.kv_heads, share)

    def tiles(g: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        request, first, used = (jax.lax.dynamic_slice(x, (g * _TOGETHER,), (_TOGETHER,)) for x in (request_of, first_of, rows_of))
        at = first[:, None] + jnp.arange(TILE)
        there = jnp.arange(TILE) < used[:, None]
        index = jnp.minimum(at, total - 1)
        tile = q[index].reshape(_TOGETHER, TILE, s.kv_heads, share, -1) * s.scale
        i = rows.positions[index]
        last = jnp.where(used > 0, rows.positions[jnp.clip(first + used - 1, 0, total - 1)] + 1, 0)
        stop = last if s.mask == "causal" else jnp.where(used > 0, rows.end[request], 0)
        base = rows.start[request] if keys.relative else jnp.zeros_like(stop)
        low = jnp.zeros_like(stop)
        if s.window is not None and s.mask == "causal" and not keys.relative:
            low = jnp.where(used > 0, jnp.maximum(rows.positions[index[:, 0]] - s.window + 1, 0), stop)
        shape = (_TOGETHER, TILE, s.kv_heads, share)
        m = jnp.full(shape, -jnp.inf) if sink is None else jnp.broadcast_to(sink, shape)
        state = (m, jnp.zeros(shape) if sink is None else jnp.ones(shape), jnp.zeros((*shape, s.v_head_dim)))

        def chunk(c: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            k, v, j, exists, segment = keys.fetch(request, c)
            scores = jnp.einsum("grkhd,gckd->grkhc", tile, k, precision=jax.lax.Precision.HIGHEST)
            if s.soft_cap is not None:
                scores = s.soft_cap * jnp.tanh(scores / s.soft_cap)
            if slopes is not None:
                scores = scores + slopes.reshape(s.kv_heads, share)[..., None] * (j[:, None] - i[..., None])[:, :, None, None]
            same = None if segments is None else segments[index][..., None] == segment[:, None]
            seen = visible(s, i[..., None], j[:, None], rows.prompt_len[request][:, None, None], same) & exists[:, None] & there[..., None]
            return _add(state, jnp.where(seen[:, :, None, None], scores, -jnp.inf), jnp.where(exists[..., None, None], v, 0.0))

        begin, until = (low - base).min() // keys.tokens, -(-(stop - base).max() // keys.tokens)
        m, weight, sums = jax.lax.fori_loop(jnp.maximum(begin, 0), until, chunk, state)
        o = jnp.where(weight[..., None] > 0, sums / jnp.maximum(weight, 1e-37)[..., None], 0.0)
        to = jnp.where(there, at, total)
        out, lse = carry
        out = out.at[to].set(o.reshape(_TOGETHER, TILE, -1), mode="drop")
        return out, lse.at[to].set((m + jnp.log(jnp.maximum(weight, 1e-37))).reshape(_TOGETHER, TILE, -1), mode="drop")

    zeros = jnp.zeros((total, s.q_heads * s.v_head_dim)), jnp.zeros((total, s.q_heads))
    return jax.lax.fori_loop(0, -(-rows.total[2] // _TOGETHER), tiles, zeros)


def _add(state: tuple[Array, Array, Array], scores: Array, v: Array) -> tuple[Array, Array, Array]:
    """The running maximum, weight and weighted values [G, R, K, H / K (, V)] after a chunk of scores [..., C] and values [G, C, K, V]."""
    m, weight, sums = state
    top = jnp.maximum(m, scores.max(-1))
    safe = jnp.where(jnp.isfinite(top), top, 0.0)
    part, old = jnp.exp(scores - safe[..., None]), jnp.exp(m - safe)
    added = jnp.einsum("grkhc,gckd->grkhd", part, v, precision=jax.lax.Precision.HIGHEST)
    return top, weight * old + part.sum(-1), sums * old[..., None] + added

"""Drawing tokens on the device, by the specification llmx.sample.reference: one row of logits, one token.

Steps 1 to 5 of the specification change few tokens of a row, by its history and options; the host says which as arrays [R, V] (`Edits`), and only for
steps with such a row. Weights and their sums are float64, as in the specification. Shape letters: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from llmx.executor import SamplingRow
from llmx.executor.drawing import SampleRow

__all__ = ["draw", "draw_edited", "edited_arrays", "no_edits", "row_arrays"]

_GREEDY_BELOW = np.float32(1e-5)
_NAN, _DEAD = 1, 2  # llmx.executor.Status
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SEEN, _GENERATED = 1, 2  # bits of `flags`


def row_arrays(rows: Sequence[SampleRow], size: int) -> dict[str, np.ndarray]:
    """Options of each row, [size]: what `draw` reads beside logits."""
    options = [row.slot.row for row in rows]
    arrays = {
        "temperature": np.zeros(size, np.float32), "top_k": np.zeros(size, np.int32), "top_p": np.ones(size, np.float32),
        "min_p": np.full(size, -np.inf, np.float32), "seed": np.zeros((size, 2), np.uint32), "position": np.zeros((size, 2), np.uint32),
    }  # fmt: skip
    for at, (row, one) in enumerate(zip(rows, options, strict=True)):
        position = len(row.slot.history) + len(row.before)
        arrays["temperature"][at], arrays["top_k"][at], arrays["top_p"][at] = one.temperature, one.top_k, one.top_p
        if one.min_p > 0:
            arrays["min_p"][at] = np.log(np.float64(np.float32(one.min_p)))
        arrays["seed"][at] = one.seed & 0xFFFFFFFF, one.seed >> 32
        arrays["position"][at] = position & 0xFFFFFFFF, position >> 32
    return arrays


def _plain(row: SampleRow) -> bool:
    one = row.slot.row
    return (
        row.mask is None and one.presence_penalty == 0 and one.frequency_penalty == 0 and one.repetition_penalty == 1 and one.allowed_ids is None
        and not len(one.bias_ids) and not len(one.bad_words) and not one.min_tokens
    )  # fmt: skip


def edited_arrays(rows: Sequence[SampleRow], size: int, vocab: int) -> dict[str, np.ndarray] | None:
    """What steps 1 to 5 change, [size, V] each; None when no row has anything of them."""
    if all(map(_plain, rows)):
        return None
    arrays = no_edits(size, vocab)
    for at, row in enumerate(rows):
        if not _plain(row):
            _edit(row, vocab, {name: array[at] for name, array in arrays.items() if array.ndim == 2})
            arrays["repetition"][at], arrays["presence"][at] = row.slot.row.repetition_penalty, row.slot.row.presence_penalty
    return arrays


def no_edits(size: int, vocab: int) -> dict[str, np.ndarray]:
    """Arrays that change nothing."""
    words = -(-vocab // 32)
    return {
        "bias": np.zeros((size, vocab), np.float32), "allowed": np.full((size, words), 0xFFFFFFFF, np.uint32), "flags": np.zeros((size, vocab), np.uint8),
        "frequency": np.zeros((size, vocab), np.float32), "repetition": np.ones(size, np.float32), "presence": np.zeros(size, np.float32),
    }  # fmt: skip


def _edit(row: SampleRow, vocab: int, to: dict[str, np.ndarray]) -> None:
    one, history = row.slot.row, np.array([*row.slot.history, *row.before], np.int64)
    generated = history[row.slot.prompt_len :]
    inside = one.bias_ids < vocab
    to["bias"][one.bias_ids[inside]] += one.bias[inside]
    if row.mask is not None:
        to["allowed"][:] = row.mask
    _allow(one, generated, vocab, to["allowed"])
    if one.repetition_penalty != 1 or one.frequency_penalty != 0 or one.presence_penalty != 0:
        known = history[(history >= 0) & (history < vocab)]
        to["flags"][known] |= _SEEN
        ids, times = np.unique(generated[(generated >= 0) & (generated < vocab)], return_counts=True)
        to["flags"][ids] |= _GENERATED
        to["frequency"][ids] = np.float32(one.frequency_penalty) * times.astype(np.float32)  # the product is rounded here: a device would fuse it


def _allow(one: SamplingRow, generated: np.ndarray, vocab: int, words: np.ndarray) -> None:
    """Clears the bits of tokens that may not be drawn."""
    if one.allowed_ids is not None:
        allowed = np.zeros(32 * len(words), np.uint8)
        allowed[one.allowed_ids[one.allowed_ids < vocab]] = 1
        words &= np.packbits(allowed, bitorder="little").view(np.uint32)
    banned = list(one.stop_ids) if len(generated) < one.min_tokens else []
    at = 0
    while at < len(one.bad_words):
        end = at + 1 + int(one.bad_words[at])
        *before, last = one.bad_words[at + 1 : end].tolist()
        if len(before) <= len(generated) and generated[len(generated) - len(before) :].tolist() == before:
            banned.append(last)
        at = end
    for token in banned:
        if token < vocab:
            words[int(token) >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (int(token) & 31)))


def draw_edited(logits: jax.Array, places: jax.Array, rows: dict[str, jax.Array], edits: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """As `draw`, after steps 1 to 5."""
    logits = logits[places]
    vocab = logits.shape[1]
    token = jnp.arange(vocab)
    allowed = (edits["allowed"][:, token >> 5] >> (token & 31).astype(jnp.uint32)) & 1
    z = jnp.where(allowed == 1, logits + edits["bias"], -jnp.inf)
    repetition, flags = edits["repetition"][:, None], edits["flags"]
    z = jnp.where((flags & _SEEN) > 0, jnp.where(z > 0, z / repetition, z * repetition), z)
    z = z - edits["frequency"]
    z = jnp.where((flags & _GENERATED) > 0, z - edits["presence"][:, None], z)
    return _draw(logits, z, rows)


def draw(logits: jax.Array, places: jax.Array, rows: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """(token i32 [R], status i32 [R]) of the rows `places` of logits f32 [R, V]; a token whose status is not 0 means nothing. Trace with 64-bit types on."""
    logits = logits[places]
    return _draw(logits, logits, rows)


def _draw(logits: jax.Array, z: jax.Array, rows: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    broken = _not_numbers(logits) | _not_numbers(z)
    status = jnp.where(broken, _NAN, jnp.where(z.max(-1) == -jnp.inf, _DEAD, 0))
    greedy = rows["temperature"] < _GREEDY_BELOW
    token = jax.lax.cond(jnp.all(greedy), lambda: jnp.zeros(z.shape[0], jnp.int32), lambda: _drawn(z, rows))
    return jnp.where(greedy, z.argmax(-1), token).astype(jnp.int32), status.astype(jnp.int32)


def _not_numbers(x: jax.Array) -> jax.Array:
    return (jnp.isnan(x) | (x == jnp.inf)).any(-1)


def _drawn(z: jax.Array, rows: dict[str, jax.Array]) -> jax.Array:
    """Steps 6 to 8, and the draw."""
    vocab = z.shape[1]
    temperature = jnp.where(rows["temperature"] < _GREEDY_BELOW, np.float32(1), rows["temperature"])[:, None]
    distance = (z - z.max(-1, keepdims=True)) / temperature
    weight = jnp.exp(distance.astype(jnp.float64))
    top_k, top_p = rows["top_k"], rows["top_p"]
    cuts = ((top_k > 0) & (top_k < vocab)) | (top_p < 1)

    def cut() -> jax.Array:
        descending = -jnp.sort(-z, -1)
        size = jnp.where((top_k > 0) & (top_k < vocab), top_k, vocab)
        place = jnp.arange(vocab)
        sums = jnp.cumsum(jnp.exp(((descending - descending[:, :1]) / temperature).astype(jnp.float64)), -1)
        whole = jnp.take_along_axis(sums, size[:, None] - 1, -1)
        reached = (sums >= top_p[:, None].astype(jnp.float64) * whole) | (place == size[:, None] - 1)
        size = jnp.where(top_p < 1, jnp.minimum(reached.argmax(-1) + 1, size), size)
        edge = jnp.take_along_axis(descending, size[:, None] - 1, -1)
        room = size[:, None] - (z > edge).sum(-1, keepdims=True)  # how many of those equal to the edge stay: the lowest ids
        equal = z == edge
        return jnp.where(cuts[:, None], (z > edge) | (equal & (jnp.cumsum(equal, -1) <= room)), True)

    kept = jax.lax.cond(jnp.any(cuts), cut, lambda: jnp.ones(z.shape, bool))
    weight = jnp.where(kept & ~(distance < rows["min_p"][:, None]), weight, 0.0)
    sums = jnp.cumsum(weight, -1)
    target = _uniform(rows["seed"], rows["position"])[:, None] * sums[:, -1:]
    return jnp.minimum((sums <= target).sum(-1), vocab - 1).astype(jnp.int32)


def _uniform(seed: jax.Array, position: jax.Array) -> jax.Array:
    """float64 [R] in [0, 1): Philox4x32-10 with key `seed` and counter (`position`, 0), words u32 [R, 2], low first."""
    low, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    k0, k1 = (seed[:, i].astype(jnp.uint64) for i in (0, 1))
    c0, c1 = (position[:, i].astype(jnp.uint64) for i in (0, 1))
    c2 = c3 = jnp.zeros_like(c0)
    for _ in range(10):
        wide0, wide1 = np.uint64(_MULTIPLIERS[0]) * c0, np.uint64(_MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (wide1 >> word) ^ c1 ^ k0, wide1 & low, (wide0 >> word) ^ c3 ^ k1, wide0 & low
        k0, k1 = (k0 + np.uint64(_WEYL[0])) & low, (k1 + np.uint64(_WEYL[1])) & low
    return c0.astype(jnp.float64) * 2.0**-32



"""What stands between a projection and attention, pages, and attention itself.

Shape letters: T rows, H query heads, K kv heads, D head size, V value head size.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from llmx.program.attrs import AttentionAttrs, AttnSpec, MlaAttrs, MlaSpec, NormAttrs, PositionScaleAttrs, QkvAttrs, QkvSpec, RopeAttrs, RopeSpec
from llmx.program.positions import alibi_slopes, position_scales, rope_table, section_rows
from llmx_tpu.kernel import Array, Bound, reference
from llmx_tpu.kernels.basic import normalise
from llmx_tpu.kernels.paged import attend, own_keys, paged_keys
from llmx_tpu.pages import write_rows
from llmx_tpu.rows import Rows
from llmx_tpu.weights import Weights

__all__ = ["attention", "kv_write", "mla", "position_scale", "prepare_attention", "qkv_prep", "rope", "rotate"]


def _rope_tables(weights: Weights, spec: RopeSpec | None) -> dict[str, Array]:
    """rope [positions, rotary_dim]: cosines, then sines; sections: the row of positions that turns each frequency."""
    if spec is None:
        return {}
    length = weights.max_model_len
    tables = {"rope": weights.constant(("rope", spec, length), lambda: rope_table(spec, length))}
    if spec.mrope_sections:
        tables["sections"] = weights.constant(("sections", spec), lambda: section_rows(spec))
    return tables


def _scale_table(weights: Weights, scale: tuple[float, float] | None) -> dict[str, Array]:
    if scale is None:
        return {}
    return {"scales": weights.constant(("scales", scale, weights.max_model_len), lambda: position_scales(*scale, weights.max_model_len))}


def rotate(x: Array, positions: Array, spec: RopeSpec, tables: Mapping[str, Array]) -> Array:
    """x [T, heads, D] with its first rotary_dim elements turned, in pairs (i, i + n / 2) or (2i, 2i + 1)."""
    n, table = spec.rotary_dim, tables["rope"]
    if spec.mrope_sections:  # frequency i reads the position in row sections[i]
        at = positions[tables["sections"]].T  # [T, n / 2]
        index = jnp.arange(n // 2)
        cos, sin = table[at, index], table[at, index + n // 2]
    else:
        cos, sin = jnp.split(table[positions], 2, -1)
    cos, sin = cos[:, None], sin[:, None]
    turned, rest = x[..., :n], x[..., n:]
    if spec.style == "neox":
        a, b = jnp.split(turned, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
    a, b = turned[..., 0::2], turned[..., 1::2]
    pairs = jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(turned.shape)
    return jnp.concatenate([pairs, rest], -1)


def _prepare_rope(weights: Weights, attrs: RopeAttrs) -> dict[str, Array]:
    return _rope_tables(weights, attrs.spec)


@reference(_prepare_rope)
def rope(op: Bound, rows: Rows, x: Array, positions: Array) -> Array:
    """Rotary embedding of x [T, heads, D]."""
    return rotate(x, positions, op.attrs.spec, op.weights)


def _prepare_position_scale(weights: Weights, attrs: PositionScaleAttrs) -> dict[str, Array]:
    return _scale_table(weights, (attrs.scale, attrs.floor))


@reference(_prepare_position_scale)
def position_scale(op: Bound, rows: Rows, x: Array, positions: Array) -> Array:
    """x (1 + s log(1 + floor((position + 1) / f)))."""
    return x * op.weights["scales"][positions].reshape(-1, *[1] * (x.ndim - 1))


def _prepare_qkv(weights: Weights, attrs: QkvAttrs) -> dict[str, Array]:
    return {**_rope_tables(weights, attrs.spec.rope), **_scale_table(weights, attrs.spec.q_position_scale)}


@reference(_prepare_qkv)
def qkv_prep(op: Bound, rows: Rows, x: Array, positions: Array | None = None) -> tuple[Array, ...]:
    """split, clip, norm, rope, norm if after, scale by position: q, k, v and gate, of which the spec says what there is."""
    s: QkvSpec = op.attrs.spec
    if s.clip is not None:
        x = jnp.clip(x, -s.clip, s.clip)
    total, wide_q = x.shape[0], s.q_heads * s.head_dim * (2 if s.gate else 1) if s.has_q else 0
    results: list[Array] = []
    gate = None
    if s.has_q:
        q = x[:, :wide_q].reshape(total, s.q_heads, -1)
        if s.gate:  # per head q, then its gate
            q, gate = jnp.split(q, 2, -1)
        q = _turned(op, q, "q_norm", positions)
        if s.q_position_scale is not None:
            q = q * op.weights["scales"][positions][:, None, None]
        results.append(q)
    if s.has_kv:
        k, v = jnp.split(x[:, wide_q:], [s.kv_heads * s.head_dim], -1)
        v = v.reshape(total, s.kv_heads, -1)
        results.append(_turned(op, k.reshape(total, s.kv_heads, -1), "k_norm", positions))
        results.append(normalise(v, NormAttrs("rms", s.norm_eps)) if s.v_norm else v)
    return (*results, gate.reshape(total, -1)) if gate is not None else tuple(results)


def _turned(op: Bound, x: Array, role: str, positions: Array | None) -> Array:
    """Norm and rope of q or k [T, heads, D] in the order that the spec says."""
    s: QkvSpec = op.attrs.spec

    def normed(x: Array) -> Array:
        if s.qk_norm == "none":
            return x
        attrs = NormAttrs(s.qk_norm_kind, s.norm_eps, s.norm_offset)
        w, bias = op.weights.get(f"{role}.0"), op.weights.get(f"{role}.0.bias")
        return normalise(x, attrs, w, bias) if s.qk_norm == "head" else normalise(x.reshape(x.shape[0], -1), attrs, w, bias).reshape(x.shape)

    x = normed(x) if s.qk_norm_before_rope else x
    if s.rope is not None:
        assert positions is not None, "verify asks for positions"
        x = rotate(x, positions, s.rope, op.weights)
    return x if s.qk_norm_before_rope else normed(x)


@reference()
def kv_write(op: Bound, rows: Rows, k: Array, v: Array) -> tuple[()]:
    """All rows of the step into the pages, before anybody reads them."""
    write_rows(rows, op.states[0], k, v)
    return ()


def prepare_attention(weights: Weights, attrs: AttentionAttrs) -> dict[str, Array]:
    """The slopes of alibi."""
    heads = attrs.spec.q_heads
    return {"alibi": weights.constant(("alibi", heads), lambda: alibi_slopes(heads))} if attrs.spec.alibi else {}


@reference(prepare_attention)
def attention(
    op: Bound, rows: Rows, q: Array, k: Array | None = None, v: Array | None = None, segments: Array | None = None
) -> Array | tuple[Array, ...]:
    """Over the pages of each request; without a State over its own rows k and v."""
    a: AttentionAttrs = op.attrs
    if op.states:
        keys = paged_keys(rows, op.states[0])
    else:
        assert k is not None and v is not None, "verify asks for a state, or k and v"
        keys = own_keys(rows, k, v, segments)
    o, lse = attend(a.spec, rows, q, keys, sinks=op.weights.get("sinks.0"), slopes=op.weights.get("alibi"), segments=segments)
    return (o, lse) if a.lse else o


def _prepare_mla(weights: Weights, attrs: MlaAttrs) -> dict[str, Array]:
    return _rope_tables(weights, attrs.spec.rope)


@reference(_prepare_mla)
def mla(op: Bound, rows: Rows, q: Array, c_kv: Array, k_pe: Array, positions: Array) -> Array | tuple[Array, ...]:
    """Latent attention, absorbed: the page holds c_kv and the rotated k_pe; q goes through the keys' half of kv_b, the result through the values'."""
    s: MlaSpec = op.attrs.spec
    exact = jax.lax.Precision.HIGHEST
    q = q.reshape(q.shape[0], s.q_heads, -1)
    turned = rotate(q[..., s.qk_nope :], positions, s.rope, op.weights)
    write_rows(rows, op.states[0], jnp.concatenate([c_kv, rotate(k_pe[:, None], positions, s.rope, op.weights)[:, 0]], -1))
    kv_b = op.weights["kv_b.0"].astype(jnp.float32).reshape(s.q_heads, s.qk_nope + s.v_head_dim, s.kv_lora)
    absorbed = jnp.einsum("thn,hnl->thl", q[..., : s.qk_nope], kv_b[:, : s.qk_nope], precision=exact)
    spec = AttnSpec(s.q_heads, 1, s.kv_lora + s.qk_rope, s.kv_lora, s.scale)
    keys = paged_keys(rows, op.states[0], lambda page: (page[:, :, None], page[:, :, None, : s.kv_lora]))
    o, lse = attend(spec, rows, jnp.concatenate([absorbed, turned], -1), keys)
    latent = o.reshape(-1, s.q_heads, s.kv_lora)
    o = jnp.einsum("thl,hvl->thv", latent, kv_b[:, s.qk_nope :], precision=exact).reshape(latent.shape[0], -1)
    return (o, lse) if op.attrs.lse else o

"""Reference kernels of what stands between a projection and attention, of pages, and of attention itself.

Shape letters: T rows of a request, S tokens that it sees, H query heads, K kv heads, D head size, V value head size.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from llmx.executor.slots import RequestRows
from llmx.executor.torch.kernel import Bound, Tensor, reference
from llmx.executor.torch.kernels.basic import normalise
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.program.attrs import AttentionAttrs, AttnSpec, MlaAttrs, MlaSpec, NormAttrs, PositionScaleAttrs, QkvAttrs, QkvSpec, RopeAttrs, RopeSpec
from llmx.program.positions import alibi_slopes, position_scales, rope_table, section_rows

__all__ = ["attend", "attention", "kv_write", "mla", "position_scale", "qkv_prep", "rope", "rotate"]


# -- positions ---------------------------------------------------------------------------------------------------------


def _rope_tables(weights: Weights, spec: RopeSpec | None) -> dict[str, Tensor]:
    """rope [positions, rotary_dim]: cosines, then sines; sections: the row of positions that turns each frequency."""
    if spec is None:
        return {}
    length = weights.max_model_len
    tables = {"rope": weights.constant(("rope", spec, length), lambda: rope_table(spec, length))}
    if spec.mrope_sections:
        tables["sections"] = weights.constant(("sections", spec), lambda: section_rows(spec))
    return tables


def _scale_table(weights: Weights, scale: tuple[float, float] | None) -> dict[str, Tensor]:
    if scale is None:
        return {}
    return {"scales": weights.constant(("scales", scale, weights.max_model_len), lambda: position_scales(*scale, weights.max_model_len))}


def rotate(x: Tensor, positions: Tensor, spec: RopeSpec, tables: Mapping[str, Tensor]) -> Tensor:
    """x [T, heads, D] with its first rotary_dim elements turned, in pairs (i, i + n / 2) or (2i, 2i + 1)."""
    n, table = spec.rotary_dim, tables["rope"]
    if spec.mrope_sections:  # frequency i reads the position in row sections[i]
        at = positions[tables["sections"]].T  # [T, n / 2]
        index = torch.arange(n // 2, device=x.device)
        cos, sin = table[at, index], table[at, index + n // 2]
    else:
        cos, sin = table[positions].chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    first, second = (slice(0, n // 2), slice(n // 2, n)) if spec.style == "neox" else (slice(0, n, 2), slice(1, n, 2))
    a, b, out = x[..., first], x[..., second], x.clone()
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def _prepare_rope(weights: Weights, attrs: RopeAttrs) -> dict[str, Tensor]:
    return _rope_tables(weights, attrs.spec)


@reference(_prepare_rope)
def rope(op: Bound, rows: Rows, x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of x [T, heads, D]."""
    return rotate(x, positions, op.attrs.spec, op.weights)


def _prepare_position_scale(weights: Weights, attrs: PositionScaleAttrs) -> dict[str, Tensor]:
    return _scale_table(weights, (attrs.scale, attrs.floor))


@reference(_prepare_position_scale)
def position_scale(op: Bound, rows: Rows, x: Tensor, positions: Tensor) -> Tensor:
    """x (1 + s log(1 + floor((position + 1) / f)))."""
    return x * op.weights["scales"][positions].reshape(-1, *[1] * (x.ndim - 1))


# -- between the projection and attention ------------------------------------------------------------------------------


def _prepare_qkv(weights: Weights, attrs: QkvAttrs) -> dict[str, Tensor]:
    return {**_rope_tables(weights, attrs.spec.rope), **_scale_table(weights, attrs.spec.q_position_scale)}


@reference(_prepare_qkv)
def qkv_prep(op: Bound, rows: Rows, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, ...]:
    """split, clip, norm, rope, norm if after, scale by position: q, k, v and gate, of which the spec says what there is."""
    s: QkvSpec = op.attrs.spec
    if s.clip is not None:
        x = x.clamp(-s.clip, s.clip)
    wide_q = s.q_heads * s.head_dim * (2 if s.gate else 1) if s.has_q else 0
    results: list[Tensor] = []
    gate = None
    if s.has_q:
        q = x[:, :wide_q].unflatten(-1, (s.q_heads, -1))
        if s.gate:  # per head q, then its gate
            q, gate = q.chunk(2, -1)
        q = _turned(op, q, "q_norm", positions)
        if s.q_position_scale is not None:
            q = q * op.weights["scales"][positions][:, None, None]
        results.append(q)
    if s.has_kv:
        k, v = x[:, wide_q:].split((s.kv_heads * s.head_dim, s.kv_heads * s.v_head_dim), -1)
        v = v.unflatten(-1, (s.kv_heads, -1))
        results.append(_turned(op, k.unflatten(-1, (s.kv_heads, -1)), "k_norm", positions))
        results.append(normalise(v, NormAttrs("rms", s.norm_eps)) if s.v_norm else v)
    return (*results, gate.flatten(1)) if gate is not None else tuple(results)


def _turned(op: Bound, x: Tensor, role: str, positions: Tensor | None) -> Tensor:
    """Norm and rope of q or k [T, heads, D] in the order that the spec says."""
    s: QkvSpec = op.attrs.spec

    def normed(x: Tensor) -> Tensor:
        if s.qk_norm == "none":
            return x
        attrs = NormAttrs(s.qk_norm_kind, s.norm_eps, s.norm_offset)
        w, bias = op.weights.get(f"{role}.0"), op.weights.get(f"{role}.0.bias")
        return normalise(x, attrs, w, bias) if s.qk_norm == "head" else normalise(x.flatten(1), attrs, w, bias).view_as(x)

    x = normed(x) if s.qk_norm_before_rope else x
    if s.rope is not None:
        assert positions is not None, "verify asks for positions"
        x = rotate(x, positions, s.rope, op.weights)
    return x if s.qk_norm_before_rope else normed(x)


# -- attention ---------------------------------------------------------------------------------------------------------


@reference()
def kv_write(op: Bound, rows: Rows, k: Tensor, v: Tensor) -> tuple[()]:
    """All rows of the step into the pages, before anybody reads them."""
    op.states[0].write(rows, k, v)
    return ()


def _prepare_attention(weights: Weights, attrs: AttentionAttrs) -> dict[str, Tensor]:
    heads = attrs.spec.q_heads
    return {"alibi": weights.constant(("alibi", heads), lambda: alibi_slopes(heads))} if attrs.spec.alibi else {}


@reference(_prepare_attention)
def attention(
    op: Bound, rows: Rows, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, segments: Tensor | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Request by request, over its pages; without a State over its own rows k and v."""
    a: AttentionAttrs = op.attrs
    outs, lses = [], []
    for one in rows.requests:
        if op.states:
            begin, (keys, values) = op.states[0].read(one)
        else:
            assert k is not None and v is not None, "verify asks for a state, or k and v"
            begin, keys, values = one.start, k[one.span], v[one.span]
        mask = visible(a.spec, one, begin, keys.shape[0], None if segments is None else segments[one.span], q.device)
        o, lse = attend(a.spec, q[one.span], keys, values, mask, _bias(op, one, begin, keys.shape[0], q.device), op.weights.get("sinks.0"))
        outs.append(o)
        lses.append(lse)
    return (torch.cat(outs), torch.cat(lses)) if a.lse else torch.cat(outs)


def visible(s: AttnSpec, one: RequestRows, begin: int, count: int, segments: Tensor | None, device: torch.device) -> Tensor:
    """bool [T, S]: which of the tokens begin .. begin + count - 1 each row of the request sees."""
    i = torch.arange(one.start, one.end, device=device)[:, None]
    j = torch.arange(begin, begin + count, device=device)[None]
    if s.mask == "causal":
        seen = j <= i
    elif s.mask == "prefix":
        seen = (j <= i) | (j < one.prompt_len)  # every row sees the whole prompt
    elif s.mask == "block" and segments is not None:
        seen = segments[:, None] == segments[None]
    else:  # bidirectional; a block mask with chunk is cut below
        seen = torch.ones((one.q, count), dtype=torch.bool, device=device)
    if s.window is not None:
        seen = seen & (i - j < s.window)
    if s.chunk is not None:
        seen = seen & (i // s.chunk == j // s.chunk)
    return seen


def _bias(op: Bound, one: RequestRows, begin: int, count: int, device: torch.device) -> Tensor | None:
    """alibi [H, T, S]: slope times (key's position - row's position); None without."""
    if "alibi" not in op.weights:
        return None
    i = torch.arange(one.start, one.end, device=device)[:, None]
    j = torch.arange(begin, begin + count, device=device)[None]
    return op.weights["alibi"][:, None, None] * (j - i)


def attend(
    s: AttnSpec, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None = None, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(o [T, H V], log-sum-exp [T, H]) of q [T, H, D] over k [S, K, D] and v [S, K, V]; query head h reads kv head h // (H / K)."""
    share = s.q_heads // s.kv_heads
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = torch.einsum("thd,shd->hts", q, k) * s.scale
    if s.soft_cap is not None:
        scores = s.soft_cap * torch.tanh(scores / s.soft_cap)
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:  # one more logit per head, which takes its share and gives nothing
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()[..., : k.shape[0]]
    return torch.einsum("hts,shd->thd", weights, v).flatten(1), lse.T


def _prepare_mla(weights: Weights, attrs: MlaAttrs) -> dict[str, Tensor]:
    return _rope_tables(weights, attrs.spec.rope)


@reference(_prepare_mla)
def mla(op: Bound, rows: Rows, q: Tensor, c_kv: Tensor, k_pe: Tensor, positions: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Latent attention: the page holds c_kv and the rotated k_pe; keys and values are unfolded through kv_b when they are read."""
    s: MlaSpec = op.attrs.spec
    q = q.unflatten(-1, (s.q_heads, -1))
    q = torch.cat([q[..., : s.qk_nope], rotate(q[..., s.qk_nope :], positions, s.rope, op.weights)], -1)
    k_pe = rotate(k_pe[:, None], positions, s.rope, op.weights)[:, 0]
    op.states[0].write(rows, torch.cat([c_kv, k_pe], -1))
    spec = AttnSpec(s.q_heads, s.q_heads, s.qk_nope + s.qk_rope, s.v_head_dim, s.scale)
    outs, lses = [], []
    for one in rows.requests:
        begin, (page,) = op.states[0].read(one)
        latent, turned = page.split((s.kv_lora, s.qk_rope), -1)
        k, v = (latent @ op.weights["kv_b.0"].T).unflatten(-1, (s.q_heads, -1)).split((s.qk_nope, s.v_head_dim), -1)
        k = torch.cat([k, turned[:, None].expand(-1, s.q_heads, -1)], -1)
        o, lse = attend(spec, q[one.span], k, v, visible(spec, one, begin, k.shape[0], None, q.device))
        outs.append(o)
        lses.append(lse)
    return (torch.cat(outs), torch.cat(lses)) if op.attrs.lse else torch.cat(outs)

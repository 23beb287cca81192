"""Lowering of what stands between a qkv projection and attention, of pages, and of attention."""

from __future__ import annotations

from collections.abc import Sequence

from llmx.errors import ProgramError
from llmx.program.attrs import AttnSpec, QkvSpec, RopeSpec
from llmx.program.ops import Op, Value
from llmx.program.positions import alibi_slopes, position_scales, rope_table
from llmx_cpu.lower.basic import NORMS
from llmx_cpu.lower.builder import TapeBuilder, row_width, rows_symbol

__all__ = ["attention", "kv_write", "position_scale", "qkv_prep", "rope"]


def _rope(b: TapeBuilder, spec: RopeSpec) -> tuple[int, int, int]:
    """(table handle, rotary_dim, gptj pairs)."""
    table = b.weights.constant(("rope", spec, b.max_positions), lambda: rope_table(spec, b.max_positions))
    return table, spec.rotary_dim, int(spec.style == "gptj")


def _scales(b: TapeBuilder, scale: tuple[float, float]) -> int:
    return b.weights.constant(("position_scale", scale, b.max_positions), lambda: position_scales(*scale, b.max_positions))


def _need_positions(b: TapeBuilder, op: Op, index: int) -> None:
    if b.input_name(op.ins[index] if len(op.ins) > index else None) != "positions":
        raise ProgramError(f"{op.kind} in {op.region}: the native executor reads the Program input 'positions' only")


def _take(outs: Sequence[Value], has_q: bool, has_kv: bool, gate: bool) -> list[Value | None]:
    """q, k, v, gate: outs in that order, None for what is absent."""
    given, result = list(outs), list[Value | None]()
    for present in (has_q, has_kv, has_kv, gate):
        result.append(given.pop(0) if present else None)
    return result


def qkv_prep(b: TapeBuilder, op: Op) -> None:
    """split, clip, norms, rope and position scale in one record."""
    s: QkvSpec = op.attrs.spec
    x = op.ins[0]
    assert x is not None
    table = scale = -1
    rotary = pairs = 0
    if s.rope is not None:
        _need_positions(b, op, 1)
        table, rotary, pairs = _rope(b, s.rope)
    if s.q_position_scale is not None:
        _need_positions(b, op, 1)
        scale = _scales(b, s.q_position_scale)
    norms, biases = [-1, -1], [-1, -1]
    for at, role in enumerate(("q_norm", "k_norm")):
        if role in op.weights:
            (part,) = op.weights[role]
            norms[at] = b.weights.vector(part.weight, s.norm_offset)
            biases[at] = -1 if part.bias is None else b.weights.vector(part.bias)
    span = ("none", "head", "full").index(s.qk_norm)
    outs = [-1 if v is None else b.define(v) for v in _take(op.outs, s.has_q, s.has_kv, s.gate)]
    fields = [s.q_heads, s.kv_heads, s.head_dim, s.v_head_dim, span, int(s.qk_norm_before_rope), int(s.v_norm), NORMS.index(s.qk_norm_kind), rotary, pairs]
    b.emit("qkv", rows_symbol(x), row_width(x), [b.read(x)], outs, i=fields, f=[s.clip or 0.0, s.norm_eps], w=[*norms, table, scale, *biases])


def rope(b: TapeBuilder, op: Op) -> None:
    """rope of x [T, heads, D]."""
    x = op.ins[0]
    assert x is not None
    _need_positions(b, op, 1)
    table, rotary, pairs = _rope(b, op.attrs.spec)
    heads, dim = op.attrs.heads, op.attrs.head_dim
    b.emit("rope", "T", dim, [b.read(x)], [b.define(op.outs[0])], heads, i=[heads, dim, rotary, pairs], w=[table])


def position_scale(b: TapeBuilder, op: Op) -> None:
    """x times a factor of its position."""
    x = op.ins[0]
    assert x is not None
    _need_positions(b, op, 1)
    b.emit("position_scale", "T", row_width(x), [b.read(x)], [b.define(op.outs[0])], w=[_scales(b, (op.attrs.scale, op.attrs.floor))])


def kv_write(b: TapeBuilder, op: Op) -> None:
    """k and v of all rows into pages."""
    b.emit("kv_write", "T", 0, [b.read(op.ins[0]), b.read(op.ins[1])], [], i=[b.states[op.states[0]]])


def attention(b: TapeBuilder, op: Op) -> None:
    """Attention over the pages of a State. Inputs k and v, where given, were written before and are not read."""
    s: AttnSpec = op.attrs.spec
    sinks = alibi = -1
    if s.sinks:
        sinks = b.weights.vector(op.weights["sinks"][0].weight)
    if s.alibi:
        alibi = b.weights.constant(("alibi", s.q_heads), lambda: alibi_slopes(s.q_heads))
    q = op.ins[0]
    assert q is not None
    b.emit(
        "attention", "T", row_width(op.outs[0]), [b.read(q)], [b.define(op.outs[0])],
        i=[b.states[op.states[0]], s.q_heads, s.window or 0, int(s.mask == "bidirectional")], f=[s.scale, s.soft_cap or 0.0], w=[sinks, alibi],
    )  # fmt: skip

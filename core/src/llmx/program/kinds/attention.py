"""Op kinds of attention: what stands between a projection and attention, pages, and attention itself.

Shape letters: T rows, H query heads, K kv heads, D head size, V value head size.
"""

from __future__ import annotations

from collections.abc import Callable

from llmx.program.attrs import (
    AttentionAttrs,
    AttnSpec,
    MlaAttrs,
    NoAttrs,
    NormAttrs,
    PositionScaleAttrs,
    QkvAttrs,
    QkvSpec,
    RopeAttrs,
    RopeSpec,
    ScalarAttrs,
    SplitAttrs,
    ViewAttrs,
)
from llmx.program.kinds.checks import Shapes, arity, fail, index_input, last, one_part, roles, same, states_between, value
from llmx.program.ops import Dim, DType, Op, OpDef, Part, Value

__all__ = ["attention_kinds"]

Fresh = Callable[[tuple[Dim, ...], DType], Value]


def _check_rope(op: Op, spec: RopeSpec, head_dim: int) -> None:
    if spec.rotary_dim < 2 or spec.rotary_dim % 2 or spec.rotary_dim > head_dim:
        fail(op, f"rotary_dim {spec.rotary_dim} must be even and at most the head size {head_dim}")
    if spec.mrope_sections and sum(spec.mrope_sections) != spec.rotary_dim // 2:
        fail(op, f"mrope sections {list(spec.mrope_sections)} do not add up to rotary_dim / 2 = {spec.rotary_dim // 2}")
    if spec.axial and not spec.mrope_sections:
        fail(op, "axial rope needs mrope_sections")


def _positions(op: Op, index: int, rows: Dim, spec: RopeSpec | None) -> None:
    index_input(op, index, "positions", rows, len(spec.mrope_sections) if spec else 0)


def _rope(op: Op) -> Shapes:
    arity(op, 2)
    roles(op)
    a: RopeAttrs = op.attrs
    x = value(op, 0, "x", 3)
    same(op, "x", x.shape, (x.shape[0], a.heads, a.head_dim))
    _check_rope(op, a.spec, a.head_dim)
    _positions(op, 1, x.shape[0], a.spec)
    return ((x.shape, x.dtype),)


def _position_scale(op: Op) -> Shapes:
    arity(op, 2)
    roles(op)
    x = value(op, 0, "x")
    index_input(op, 1, "positions", x.shape[0])
    return ((x.shape, x.dtype),)


def _heads_fit(op: Op, q_heads: int, kv_heads: int) -> None:
    if q_heads < 1 or kv_heads < 1 or q_heads % kv_heads:
        fail(op, f"{q_heads} query heads are not a multiple of {kv_heads} kv heads")


def _qkv_prep(op: Op) -> Shapes:
    s: QkvSpec = op.attrs.spec
    arity(op, 1, 2)
    x = value(op, 0, "x", 2)
    rows, heads, kv = x.shape[0], s.q_heads, s.kv_heads
    _heads_fit(op, heads, kv)
    if not (s.has_q or s.has_kv):
        fail(op, "has neither q nor k and v")
    if not s.has_q and (s.gate or s.q_position_scale is not None):
        fail(op, "has a gate or a position scale of q but no q")
    q_width = heads * s.head_dim * (2 if s.gate else 1) if s.has_q else 0
    kv_width = kv * (s.head_dim + s.v_head_dim) if s.has_kv else 0
    if last(op, x, "x") != q_width + kv_width:
        fail(op, f"x is {x.shape[1]} wide; q {q_width} + k, v {kv_width} = {q_width + kv_width} is wanted")
    if s.rope is not None or s.q_position_scale is not None:
        if s.rope is not None:
            _check_rope(op, s.rope, s.head_dim)
        _positions(op, 1, rows, s.rope)
    wanted = [r for r, has in (("q_norm", s.has_q), ("k_norm", s.has_kv)) if has and s.qk_norm != "none" and s.qk_norm_kind != "l2"]
    roles(op, wanted)
    for role, n in (("q_norm", heads), ("k_norm", kv)):
        width = s.head_dim * (n if s.qk_norm == "full" else 1)
        one_part(op, role, (width,), (width,) if s.qk_norm_kind == "layer" else None)
    q: Shapes = (((rows, heads, s.head_dim), "act"),) if s.has_q else ()
    k_v: Shapes = (((rows, kv, s.head_dim), "act"), ((rows, kv, s.v_head_dim), "act")) if s.has_kv else ()
    gate: Shapes = (((rows, heads * s.head_dim), "act"),) if s.gate else ()
    return (*q, *k_v, *gate)


class _Steps:
    """Primitive ops that end in given values. One object decomposes one op."""

    def __init__(self, op: Op, fresh: Fresh) -> None:
        self.op, self.fresh, self.ops = op, fresh, list[Op]()

    def emit(self, kind: str, ins: tuple[Value | None, ...], shape: tuple[Dim, ...], attrs: object, part: Part | None = None) -> Value:
        """Append one op with one result."""
        out = self.fresh(shape, "act")
        self.ops.append(Op(kind, ins, (out,), attrs, {"w": (part,)} if part else {}, region=self.op.region))
        return out

    def finish(self, value: Value, out: Value) -> None:
        """Make the chain that ends in `value` end in `out` (a view of the same shape where nothing was done)."""
        if self.ops and value in self.ops[-1].outs and len(self.ops[-1].outs) == 1:
            made = self.ops.pop()
            self.ops.append(Op(made.kind, made.ins, (out,), made.attrs, made.weights, made.states, made.region))
        else:
            self.ops.append(Op("view", (value,), (out,), ViewAttrs(out.shape), region=self.op.region))

    def norm(self, x: Value, role: str, spec: QkvSpec) -> Value:
        """q/k norm of x [T, heads, D], per head or over the whole width."""
        part = self.op.weights[role][0] if role in self.op.weights else None
        attrs = NormAttrs(spec.qk_norm_kind, spec.norm_eps, spec.norm_offset)
        if spec.qk_norm == "head":
            return self.emit("norm", (x,), x.shape, attrs, part)
        wide = (x.shape[0], last(self.op, x, role) * _count(x))
        flat = self.emit("view", (x,), wide, ViewAttrs(wide))
        return self.emit("view", (self.emit("norm", (flat,), wide, attrs, part),), x.shape, ViewAttrs(x.shape))

    def rotate(self, x: Value, role: str, spec: QkvSpec, positions: Value | None) -> Value:
        """Norm and rope of q or k in the order that the spec says."""
        heads, before = _count(x), spec.qk_norm_before_rope
        if spec.qk_norm != "none" and before:
            x = self.norm(x, role, spec)
        if spec.rope is not None:
            x = self.emit("rope", (x, positions), x.shape, RopeAttrs(spec.rope, heads, spec.head_dim))
        return self.norm(x, role, spec) if spec.qk_norm != "none" and not before else x


def _count(x: Value) -> int:
    heads = x.shape[1]
    assert isinstance(heads, int)
    return heads


def _qkv_steps(op: Op, fresh: Fresh) -> list[Op]:
    """split, clip, view per head, (gate off q), norm, rope, position scale."""
    s: QkvSpec = op.attrs.spec
    x, positions = op.ins[0], op.ins[1] if len(op.ins) > 1 else None
    assert x is not None
    steps, rows, outs = _Steps(op, fresh), x.shape[0], list(op.outs)
    per_q = s.head_dim * (2 if s.gate else 1)
    layout = [("q", s.q_heads, per_q)] * s.has_q + [("k", s.kv_heads, s.head_dim), ("v", s.kv_heads, s.v_head_dim)] * s.has_kv
    if s.clip is not None:
        x = steps.emit("clip", (x,), x.shape, ScalarAttrs(s.clip))
    pieces = tuple(fresh((rows, n * width), "act") for _, n, width in layout)
    steps.ops.append(Op("split", (x,), pieces, SplitAttrs(tuple(n * width for _, n, width in layout)), region=op.region))
    for (name, n, width), piece in zip(layout, pieces, strict=True):
        head = steps.emit("view", (piece,), (rows, n, width), ViewAttrs((rows, n, width)))
        out = outs.pop(0)
        if name == "v":
            steps.finish(steps.emit("norm", (head,), head.shape, NormAttrs("rms", s.norm_eps)) if s.v_norm else head, out)
            continue
        if name == "q" and s.gate:
            head, gate = fresh((rows, n, s.head_dim), "act"), fresh((rows, n, s.head_dim), "act")
            both = steps.ops[-1].outs[0]
            steps.ops.append(Op("split", (both,), (head, gate), SplitAttrs((s.head_dim, s.head_dim)), region=op.region))
            steps.finish(gate, op.outs[-1])
        head = steps.rotate(head, f"{name}_norm", s, positions)
        if name == "q" and s.q_position_scale is not None:
            head = steps.emit("position_scale", (head, positions), head.shape, PositionScaleAttrs(*s.q_position_scale))
        steps.finish(head, out)
    return steps.ops


def _kv_write(op: Op) -> Shapes:
    arity(op, 2)
    roles(op)
    states_between(op, 1, 1)
    k, v = value(op, 0, "k", 3), value(op, 1, "v", 3)
    same(op, "v without its last axis", v.shape[:-1], k.shape[:-1])
    return ()


def _attention(op: Op) -> Shapes:
    a: AttentionAttrs = op.attrs
    s: AttnSpec = a.spec
    arity(op, 1, 4)
    states_between(op, 0, 1)
    _heads_fit(op, s.q_heads, s.kv_heads)
    q = value(op, 0, "q", 3)
    same(op, "q", q.shape, (q.shape[0], s.q_heads, s.head_dim))
    has_k, has_v = (len(op.ins) > i and op.ins[i] is not None for i in (1, 2))
    if has_k != has_v:
        fail(op, "k and v come together or not at all")
    if has_k:
        k, v = value(op, 1, "k", 3), value(op, 2, "v", 3)
        same(op, "k", k.shape, (k.shape[0], s.kv_heads, s.head_dim))
        same(op, "v", v.shape, (k.shape[0], s.kv_heads, s.v_head_dim))
    elif not op.states:
        fail(op, "has neither a state nor k and v to read")
    if len(op.ins) > 3:
        index_input(op, 3, "segments", q.shape[0])
    if (s.mask == "block" and s.chunk is None) != (len(op.ins) > 3):
        fail(op, "segments go with mask 'block' without chunk, and with nothing else")
    for name, limit in (("window", s.window), ("chunk", s.chunk), ("soft_cap", s.soft_cap)):
        if limit is not None and limit <= 0:
            fail(op, f"{name} {limit} must be above 0")
    roles(op, [r for r, on in (("sinks", s.sinks), ("relative_bias", s.relative_buckets is not None)) if on])
    one_part(op, "sinks", (s.q_heads,))
    one_part(op, "relative_bias", (s.relative_buckets or 0, s.q_heads))
    lse: Shapes = (((q.shape[0], s.q_heads), "f32"),) if a.lse else ()
    return (((q.shape[0], s.q_heads * s.v_head_dim), "act"), *lse)


def _mla(op: Op) -> Shapes:
    a: MlaAttrs = op.attrs
    s = a.spec
    sparse = s.indexer_top_k is not None
    arity(op, 7 if sparse else 4)
    states_between(op, 2 if sparse else 1, 2 if sparse else 1)
    q, c_kv, k_pe = value(op, 0, "q", 2), value(op, 1, "c_kv", 2), value(op, 2, "k_pe", 2)
    rows = q.shape[0]
    same(op, "q", q.shape, (rows, s.q_heads * (s.qk_nope + s.qk_rope)))
    same(op, "c_kv", c_kv.shape, (rows, s.kv_lora))
    same(op, "k_pe", k_pe.shape, (rows, s.qk_rope))
    _check_rope(op, s.rope, s.qk_rope)
    _positions(op, 3, rows, s.rope)
    if sparse:
        index_q, index_k, index_w = value(op, 4, "index_q", 3), value(op, 5, "index_k", 2), value(op, 6, "index_w", 2)
        same(op, "index_k", index_k.shape, (rows, index_q.shape[2]))
        same(op, "index_w", index_w.shape, (rows, index_q.shape[1]))
    roles(op, ["kv_b"])
    one_part(op, "kv_b", (s.q_heads * (s.qk_nope + s.v_head_dim), s.kv_lora))
    lse: Shapes = (((rows, s.q_heads), "f32"),) if a.lse else ()
    return (((rows, s.q_heads * s.v_head_dim), "act"), *lse)


def attention_kinds() -> list[OpDef]:
    """Definitions of all kinds of this file. docs/program.md has the meaning of each."""
    return [
        OpDef("rope", RopeAttrs, _rope),
        OpDef("position_scale", PositionScaleAttrs, _position_scale),
        OpDef("qkv_prep", QkvAttrs, _qkv_prep, _qkv_steps),
        OpDef("kv_write", NoAttrs, _kv_write),
        OpDef("attention", AttentionAttrs, _attention),
        OpDef("mla", MlaAttrs, _mla),
    ]

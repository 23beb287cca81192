"""Ops to test kernels with: each case writes a few ops over rows x [T, width] and their positions [T]; `plain` needs no State."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmx.kv.spec import KVSpec
from llmx.program import attrs as A
from llmx.program.builder import ProgramBuilder, T, part
from llmx.program.ops import Part, Value

__all__ = ["ATTENTION", "HEAD_DIM", "PLAIN", "QKV", "ROPE", "WIDTH", "Write", "attention_width", "attention_write", "qkv_width", "qkv_write"]

Write = Callable[[ProgramBuilder, Value, Value], Value | tuple[Value, ...]]
WIDTH, HEAD_DIM = 24, 8
ROPE = A.RopeSpec("neox", HEAD_DIM, 100.0)

PLAIN: Mapping[str, Write] = {
    "norm rms": lambda b, x, p: b.norm(x, "n", 1e-3, offset=1.0),
    "norm rms in groups": lambda b, x, p: b.norm(x, "n", 1e-3, groups=3),
    "norm rms with a floor": lambda b, x, p: b.norm(x, None, 0.9, eps_floor=True),
    "norm layer": lambda b, x, p: b.norm(x, "n", 1e-3, "layer", bias=True),
    "norm l2": lambda b, x, p: b.norm(x, "n", 0.3, "l2"),
    "norm gated before": lambda b, x, p: b.norm(x, "n", 1e-3, gate=b.scale(x, 0.7), groups=2),
    "norm gated after": lambda b, x, p: b.norm(x, "n", 1e-3, gate=b.scale(x, 0.7), gate_after=True),
    "linear of two parts": lambda b, x, p: b.linear(x, part("a", 7, bias=True), part("b", 5)),
    "act_mul": lambda b, x, p: b.act_mul(x, "silu"),
    "act_mul sparse": lambda b, x, p: b.act_mul(x, "gelu_tanh", 0.8),
    "add and mul": lambda b, x, p: b.mul(b.add(x, b.scale(x, 0.3)), b.scale(x, -1.5)),
    "add and mul broadcast": lambda b, x, p: b.mul(b.add(x, b.reduce(x, "mean")), b.reduce(x, "rms")),
    "mul by a weight": lambda b, x, p: b.mul(x, b.tensor("g.weight", WIDTH)),
    "sum over the second last axis": lambda b, x, p: b.view(b.reduce(b.view(x, T, 3, 8), "sum", -2), T, 8),
    "mix": lambda b, x, p: b.emit1("mix", b.view(b.split(x, 6, WIDTH - 6)[0], T, 2, 3), b.view(x, T, 3, 8)),
    "scale, softcap, clip": lambda b, x, p: b.emit1("clip", b.softcap(b.scale(x, 3.0), 1.5), attrs=A.ScalarAttrs(0.8)),
    "softmax": lambda b, x, p: b.emit1("softmax", x),
    "split and concat": lambda b, x, p: b.concat(*b.split(x, 5, 12, 7)[::-1]),
    "pos_embed": lambda b, x, p: b.pos_embed(p, "t.weight", 300, 5, offset=2),
    "embed with an outside row": lambda b, x, p: b.embed(p, "t", 30, 5, scale=1.5, outside=3),
    "position_scale": lambda b, x, p: b.emit1("position_scale", b.view(x, T, 3, 8), p, attrs=A.PositionScaleAttrs(0.3, 4.0)),
    "two outputs": lambda b, x, p: b.split(x, 10, 14),
    **{f"act {kind}": lambda b, x, p, kind=kind: b.act(x, kind) for kind in ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "tanh", "sigmoid")},  # type: ignore[misc]
}

_D = HEAD_DIM
QKV: Mapping[str, A.QkvSpec] = {
    "plain": A.QkvSpec(4, 2, _D, _D, rope=ROPE),
    "pairs, part of the head": A.QkvSpec(4, 2, _D, _D, rope=A.RopeSpec("gptj", 4, 100.0)),
    "no rope": A.QkvSpec(4, 4, _D, 12),
    "clip, wide v": A.QkvSpec(4, 2, _D, 12, clip=0.4, rope=ROPE),
    "norm per head": A.QkvSpec(4, 2, _D, _D, qk_norm="head", norm_offset=1.0, norm_eps=1e-2, rope=ROPE),
    "norm of all heads": A.QkvSpec(4, 2, _D, _D, qk_norm="full", norm_eps=1e-2, rope=ROPE),
    "norm after rope": A.QkvSpec(4, 2, _D, _D, qk_norm="head", qk_norm_kind="l2", qk_norm_before_rope=False, norm_eps=1e-2, rope=ROPE),
    "gate": A.QkvSpec(4, 2, _D, _D, gate=True, qk_norm="head", rope=ROPE),
    "v normed": A.QkvSpec(4, 2, _D, _D, v_norm=True, norm_eps=1e-2, rope=ROPE),
    "q scaled by position": A.QkvSpec(4, 2, _D, _D, rope=ROPE, q_position_scale=(0.4, 3.0)),
    "q only": A.QkvSpec(4, 2, _D, _D, has_kv=False, rope=ROPE),
    "k and v only": A.QkvSpec(4, 2, _D, _D, has_q=False, rope=ROPE),
}

ATTENTION: Mapping[str, tuple[A.AttnSpec, KVSpec | None]] = {
    "causal": (A.AttnSpec(4, 4, _D, _D, 0.3), KVSpec("full", 4, _D, _D)),
    "three heads to one": (A.AttnSpec(6, 2, _D, 12, 0.3), KVSpec("full", 2, _D, 12)),
    "soft cap": (A.AttnSpec(4, 2, _D, _D, 0.9, soft_cap=0.7), KVSpec("full", 2, _D, _D)),
    "window": (A.AttnSpec(4, 2, _D, _D, 0.3, window=9), KVSpec("sliding", 2, _D, _D, window=9)),
    "window over full pages": (A.AttnSpec(4, 2, _D, _D, 0.3, window=21), KVSpec("full", 2, _D, _D)),
    "bidirectional without pages": (A.AttnSpec(4, 2, _D, _D, 0.3, "bidirectional"), None),
}


def qkv_width(s: A.QkvSpec) -> int:
    """Width of the rows that a qkv_prep takes."""
    return s.has_q * s.q_heads * s.head_dim * (1 + s.gate) + s.has_kv * s.kv_heads * (s.head_dim + s.v_head_dim)


def qkv_write(s: A.QkvSpec) -> Write:
    """A case of one qkv_prep."""
    norms = s.qk_norm != "none" and s.qk_norm_kind != "l2"

    def write(b: ProgramBuilder, x: Value, p: Value) -> tuple[Value, ...]:
        positions = p if s.rope or s.q_position_scale else None
        return b.qkv_prep(x, s, positions, *(("qn" if s.has_q else None, "kn" if s.has_kv else None) if norms else ()))

    return write


def attention_width(s: A.AttnSpec) -> int:
    """Width of rows that hold q, k and v of an attention."""
    return s.q_heads * s.head_dim + s.kv_heads * (s.head_dim + s.v_head_dim)


def attention_write(s: A.AttnSpec, kv: KVSpec | None, lse: bool = False, **weights: Part | None) -> Write:
    """A case of one attention over pages of `kv`, or without pages. weights: roles that get a random weight per head."""

    def write(b: ProgramBuilder, x: Value, p: Value) -> tuple[Value, ...]:
        q, k, v = b.qkv_prep(x, A.QkvSpec(s.q_heads, s.kv_heads, s.head_dim, s.v_head_dim))
        states = []
        if kv is not None:
            states = [b.state("s", kv)]
            b.kv_write("s", k, v)
        parts = {role: b.tensor(f"{role}.weight", s.q_heads) for role in weights}
        return b.emit("attention", q, k, v, attrs=A.AttentionAttrs(s, lse), states=states, weights=parts)

    return write

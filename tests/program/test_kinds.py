"""Shape rules: what they give, and what they say of inputs and weights that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llmx.errors import ProgramError
from llmx.program import attrs as A
from llmx.program.builder import E, N, R, T
from llmx.program.kinds import core_registry
from llmx.program.kinds.recurrent import recurrent_state
from llmx.program.ops import Dim, DType, Op, OpDef, OpRegistry, Part, Region, SymDiv, Value, WeightRef

Shape = Sequence[Dim]
QKV = A.QkvSpec(4, 2, 8, 8)
ATTN = A.AttnSpec(4, 2, 8, 8, 1.0)
ROPE = A.RopeSpec("neox", 8, 10000.0)
MLA = A.MlaSpec(4, 16, 8, 4, 8, 1.0, A.RopeSpec("gptj", 4, 10000.0))
MOE = A.MoeSpec(8, 2, ffn=6, groups=4, top_groups=2)
MAMBA2 = A.RecurrentSpec("mamba2", (("conv", 4), ("groups", 1), ("head_dim", 8), ("heads", 2), ("state", 16)))
DELTA = A.RecurrentSpec("gated_delta", (("conv", 4), ("k_dim", 8), ("k_heads", 2), ("v_dim", 8), ("v_heads", 4)))
KDA = A.RecurrentSpec("kda", (("conv", 4), ("heads", 2), ("k_dim", 8), ("v_dim", 4)))
MAMBA1 = A.RecurrentSpec("mamba1", (("inner", 8), ("state", 4)))
SHORT = A.RecurrentSpec("short_conv", (("channels", 8), ("conv", 3), ("silu", 0)))


def part(name: str, *shape: int, bias: tuple[int, ...] | None = None, rows: int | None = None) -> Part:
    return Part(name, WeightRef(f"{name}.weight", shape), WeightRef(f"{name}.bias", bias) if bias else None, shape[0] if rows is None else rows)


def make(kind: str, ins: Sequence[Shape | tuple[Shape, DType] | None], attrs: Any = None, states: int = 0, **weights: Part | Sequence[Part]) -> Op:
    """An op in region layer.0.x; an input is a shape (act), or (shape, dtype)."""
    values: list[Value | None] = []
    for i, given in enumerate(ins):
        typed = given is not None and len(given) == 2 and given[1] in ("i32", "f32", "act")
        shape, dtype = (given if typed else (given, "act")) if given is not None else ((), "act")
        values.append(None if given is None else Value(i, tuple(shape), dtype))  # type: ignore[arg-type]
    roles = {role: (p,) if isinstance(p, Part) else tuple(p) for role, p in weights.items()}
    names = tuple(f"s{i}" for i in range(states))
    return Op(kind, tuple(values), (), A.NoAttrs() if attrs is None else attrs, roles, names, Region("layer", 0, "x"))


def shapes(op: Op) -> list[str]:
    return [f"{dtype} {' '.join(map(str, shape))}" for shape, dtype in core_registry().get(op.kind).shape(op)]


I_T, I_R = ((T,), "i32"), ((R,), "i32")
CONV2 = part("conv", 48, 1, 4, bias=(48,))
GOOD: dict[str, tuple[Op, list[str]]] = {
    "embed": (make("embed", [I_T], A.EmbedAttrs(), w=part("e", 10, 8)), ["act T 8"]),
    "pos_embed": (make("pos_embed", [I_T], A.PosEmbedAttrs(2), w=part("e", 10, 8)), ["act T 8"]),
    "rows": (make("rows", [(T, 8), I_R]), ["act R 8"]),
    "take of a wide row": (make("take", [(SymDiv(E("v"), 4), 8), ((SymDiv(E("v"), 4),), "i32")]), ["act E.v//4 8"]),
    "merge_embeds": (make("merge_embeds", [(T, 8), (E("v"), 8), I_T]), ["act T 8"]),
    "norm without weight": (make("norm", [(T, 4, 8)], A.NormAttrs("rms", 1e-6)), ["act T 4 8"]),
    "layer norm": (make("norm", [(T, 8)], A.NormAttrs("layer", 1e-6), w=part("n", 8, bias=(8,))), ["act T 8"]),
    "linear": (make("linear", [(T, 8)], A.LinearAttrs(), w=[part("a", 3, 8), part("b", 2, 8, bias=(2,))]), ["act T 5"]),
    "act_mul": (make("act_mul", [(T, 8)], A.ActAttrs("silu")), ["act T 4"]),
    "broadcast": (make("mul", [(T, 4, 8), (T, 1, 8)]), ["act T 4 8"]),
    "learned mul": (make("mul", [(T, 8)], w=part("scale", 8)), ["act T 8"]),
    "mix": (make("mix", [(T, 3, 2), (T, 2, 8)]), ["act T 3 8"]),
    "reduce": (make("reduce", [(T, 4, 8)], A.ReduceAttrs("mean", -2)), ["act T 1 8"]),
    "f32 stays": (make("softmax", [((T, 8), "f32")]), ["f32 T 8"]),
    "split": (make("split", [(T, 8)], A.SplitAttrs((3, 5))), ["act T 3", "act T 5"]),
    "concat": (make("concat", [(T, 3), (T, 5)], A.SplitAttrs()), ["act T 8"]),
    "view of merged patches": (make("view", [(E("v"), 8)], A.ViewAttrs((SymDiv(E("v"), 4), 32))), ["act E.v//4 32"]),
    "conv1d": (make("conv1d", [(E("a"), 4)], A.ConvAttrs(8, 3, 2), w=part("c", 8, 4, 3, bias=(8,))), ["act E.a//2 8"]),
    "pool": (make("pool", [(T, 8)], A.PoolAttrs("mean")), [f"act {N} 8"]),
    "pool all": (make("pool", [(T, 8)], A.PoolAttrs("all")), ["act T 8"]),
    "gather": (make("collective", [(T, 8)], A.CollectiveAttrs("all_gather", "tp", 2)), ["act T 16"]),
    "scatter": (make("collective", [(T, 8)], A.CollectiveAttrs("reduce_scatter", "tp", 2)), ["act T 4"]),
    "opaque": (make("hf_module", [I_T], A.HfModuleAttrs("m", (("s0", ATTN),), (((T, 8), "act"),)), 1), ["act T 8"]),
    "qkv_prep": (make("qkv_prep", [(T, 64)], A.QkvAttrs(QKV)), ["act T 4 8", "act T 2 8", "act T 2 8"]),
    "gated qkv_prep": (make("qkv_prep", [(T, 96)], A.QkvAttrs(replace(QKV, gate=True))), ["act T 4 8", "act T 2 8", "act T 2 8", "act T 32"]),
    "q alone": (make("qkv_prep", [(T, 32)], A.QkvAttrs(replace(QKV, has_kv=False))), ["act T 4 8"]),
    "rope over three axes": (make("rope", [(T, 4, 8), ((3, T), "i32")], A.RopeAttrs(replace(ROPE, mrope_sections=(1, 1, 2)), 4, 8)), ["act T 4 8"]),
    "kv_write": (make("kv_write", [(T, 2, 8), (T, 2, 4)], states=1), []),
    "attention with lse": (make("attention", [(T, 4, 8)], A.AttentionAttrs(ATTN, lse=True), 1), ["act T 32", "f32 T 4"]),
    "sinks": (make("attention", [(T, 4, 8)], A.AttentionAttrs(replace(ATTN, sinks=True)), 1, sinks=part("s", 4)), ["act T 32"]),
    "mla": (make("mla", [(T, 48), (T, 16), (T, 4), I_T], A.MlaAttrs(MLA), 1, kv_b=part("kv_b", 64, 16)), ["act T 32"]),
    "sparse mla": (
        make("mla", [(T, 48), (T, 16), (T, 4), I_T, (T, 2, 8), (T, 8), (T, 2)], A.MlaAttrs(replace(MLA, indexer_top_k=4)), 2, kv_b=part("kv_b", 64, 16)),
        ["act T 32"],
    ),
    "moe_route": (make("moe_route", [(T, 8)], A.MoeAttrs(MOE), router=part("r", 8, 8), bias=part("b", 8)), ["f32 T 2", "i32 T 2"]),
    "moe_experts": (
        make(
            "moe_experts", [(T, 5), ((T, 2), "f32"), ((T, 2), "i32")], A.MoeAttrs(MOE),
            gate=[part("g", 6, 5)] * 8, up=[part("u", 6, 5)] * 8, down=[part("d", 5, 6)] * 8,
        ),
        ["act T 5"],
    ),
    "mamba2": (
        make("recurrent", [(T, 48), (T, 2)], A.RecurrentAttrs(MAMBA2), 1, conv=CONV2, a_log=part("a", 2), d=part("d", 2), dt_bias=part("t", 2)),
        ["act T 16"],
    ),
    "mamba1": (
        make("recurrent", [(T, 8), (T, 8), (T, 4), (T, 4)], A.RecurrentAttrs(MAMBA1), 1, a_log=part("a", 8, 4), d=part("d", 8)),
        ["act T 8"],
    ),
    "gated_delta": (
        make("recurrent", [(T, 64), (T, 4), (T, 4)], A.RecurrentAttrs(DELTA), 1, conv=part("c", 64, 1, 4), a_log=part("a", 4), dt_bias=part("t", 4)),
        ["act T 32"],
    ),
    "kda": (
        make(
            "recurrent", [(T, 40), (T, 16), (T, 2)], A.RecurrentAttrs(KDA), 1,
            conv=[part("q", 16, 1, 4), part("k", 16, 1, 4), part("v", 8, 1, 4)], a_log=part("a", 2), dt_bias=part("t", 16),
        ),
        ["act T 8"],
    ),
    "short_conv": (make("recurrent", [(T, 8)], A.RecurrentAttrs(SHORT), 1, conv=part("c", 8, 1, 3)), ["act T 8"]),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_shapes(case: str) -> None:
    op, want = GOOD[case]
    assert shapes(op) == want


def changed(case: str, **fields: Any) -> Op:
    """A good op with something else in it."""
    return replace(GOOD[case][0], **fields)


def spec(case: str, **fields: Any) -> Op:
    """A good op with another spec."""
    op = GOOD[case][0]
    return replace(op, attrs=replace(op.attrs, spec=replace(op.attrs.spec, **fields)))


BAD: dict[str, tuple[Op, str]] = {
    "too few inputs": (make("embed", [], A.EmbedAttrs(), w=part("e", 10, 8)), "takes 1 inputs, got 0"),
    "missing input": (make("embed", [None], A.EmbedAttrs(), w=part("e", 10, 8)), r"input 0 \(ids\) is missing"),
    "ids are rows": (make("embed", [(T, 8)], A.EmbedAttrs(), w=part("e", 10, 8)), r"\(ids\) is act; i32 is wanted"),
    "no table": (make("embed", [I_T], A.EmbedAttrs()), "weight role 'w' is missing"),
    "table of rank 1": (make("embed", [I_T], A.EmbedAttrs(), w=part("e", 8)), r"has shape \[8\]; \[rows, width\] is wanted"),
    "numbers are wanted": (make("rows", [I_T, I_R]), r"input 0 \(x\) is i32; rows of numbers"),
    "merge widths": (make("merge_embeds", [(T, 8), (E("v"), 9), I_T]), "cache rows are 9 wide, x is 8"),
    "merge index length": (make("merge_embeds", [(T, 8), (E("v"), 8), I_R]), r"\(index\) has shape \[R\]; \[T\] is wanted"),
    "norm width": (make("norm", [(T, 8)], A.NormAttrs("rms", 1e-6), w=part("n", 9)), r"weight n.weight has shape \[9\]; \[8\] is wanted"),
    "l2 bias": (make("norm", [(T, 8)], A.NormAttrs("l2", 1e-6), w=part("n", 8, bias=(8,))), "has a bias n.bias; none is allowed"),
    "norm groups": (make("norm", [(T, 8)], A.NormAttrs("rms", 1e-6, groups=3)), "width 8 cannot be cut into 3 groups"),
    "gate shape": (make("norm", [(T, 8), (T, 4)], A.NormAttrs("rms", 1e-6, gated=True)), r"gate has shape \[T, 4\]; \[T, 8\] is wanted"),
    "linear width": (make("linear", [(T, 8)], A.LinearAttrs(), w=part("a", 3, 9)), r"a.weight has shape \[3, 9\]; \[3, 8\] is wanted"),
    "linear rows": (make("linear", [(T, 8)], A.LinearAttrs(), w=part("a", 3, 8, rows=4)), r"has shape \[3, 8\]; \[4, 8\] is wanted"),
    "linear bias": (make("linear", [(T, 8)], A.LinearAttrs(), w=part("a", 3, 8, bias=(8,))), r"bias a.bias has shape \[8\]; \[3\] is wanted"),
    "linear role": (make("linear", [(T, 8)], A.LinearAttrs(), w=part("a", 3, 8), v=part("b", 1, 8)), "role 'v' is unknown; known: w"),
    "odd act_mul": (make("act_mul", [(T, 7)], A.ActAttrs("silu")), "7 wide; gate and up need an even width"),
    "sparsity": (make("act", [(T, 8)], A.ActAttrs("gelu", 1.0)), r"sparsity 1.0 is outside \[0, 1\)"),
    "softcap": (make("softcap", [(T, 8)], A.ScalarAttrs(0.0)), "value 0.0 must be above 0"),
    "add shapes": (make("add", [(T, 8), (R, 8)]), r"shapes \[T, 8\] and \[R, 8\] do not go together"),
    "broadcast to the left": (make("add", [(T, 1), (T, 8)]), "do not go together"),
    "mix": (make("mix", [(T, 3, 3), (T, 2, 8)]), r"\[A, n, m\] and \[A, m, H\] are wanted"),
    "reduce of rows": (make("reduce", [(T, 8)], A.ReduceAttrs("mean", -2)), "must be a number and not the first axis"),
    "split sizes": (make("split", [(T, 8)], A.SplitAttrs((3, 4))), r"sizes \[3, 4\] do not add up to the width 8"),
    "concat rows": (make("concat", [(T, 3), (R, 5)], A.SplitAttrs()), "input 1 without its last axis"),
    "concat sizes": (make("concat", [(T, 3), (T, 5)], A.SplitAttrs((5, 3))), "are not the inputs' widths"),
    "view": (make("view", [(T, 8)], A.ViewAttrs((T, 2, 3))), "number of elements differs"),
    "view of two symbols": (make("view", [(T, 8)], A.ViewAttrs((T, R))), "more than one symbolic axis"),
    "even kernel": (make("conv1d", [(T, 4)], A.ConvAttrs(8, 2), w=part("c", 8, 4, 2)), "kernel 2 must be odd"),
    "conv channels": (make("conv1d", [(T, 4)], A.ConvAttrs(8, 3), w=part("c", 8, 5, 3)), r"has shape \[8, 5, 3\]; \[8, 4, 3\] is wanted"),
    "output name": (make("output", [(T, 8)], A.OutputAttrs("")), "the result needs a name"),
    "scatter width": (make("collective", [(T, 7)], A.CollectiveAttrs("reduce_scatter", "tp", 2)), "width 7 cannot be shared by 2 ranks of axis 'tp'"),
    "opaque states": (changed("opaque", states=("other",)), r"states \['other'\] and specs \['s0'\] differ"),
    "qkv width": (make("qkv_prep", [(T, 65)], A.QkvAttrs(QKV)), r"x is 65 wide; q 32 \+ k, v 32 = 64 is wanted"),
    "head counts": (make("qkv_prep", [(T, 64)], A.QkvAttrs(replace(QKV, kv_heads=3))), "4 query heads are not a multiple of 3 kv heads"),
    "no positions": (make("qkv_prep", [(T, 64)], A.QkvAttrs(replace(QKV, rope=ROPE))), r"input 1 \(positions\) is missing"),
    "rotary_dim": (make("qkv_prep", [(T, 64), I_T], A.QkvAttrs(replace(QKV, rope=replace(ROPE, rotary_dim=16)))), "rotary_dim 16 must be even and at most"),
    "rope sections": (
        make("qkv_prep", [(T, 64), ((2, T), "i32")], A.QkvAttrs(replace(QKV, rope=replace(ROPE, mrope_sections=(1, 1))))), "do not add up to rotary_dim / 2 = 4"
    ),
    "one row of positions": (spec("rope over three axes", mrope_sections=(2, 2)), r"\(positions\) has shape \[3, T\]; \[2, T\] is wanted"),
    "axial": (make("rope", [(T, 4, 8), I_T], A.RopeAttrs(replace(ROPE, axial=True), 4, 8)), "axial rope needs mrope_sections"),
    "q_norm is missing": (make("qkv_prep", [(T, 64)], A.QkvAttrs(replace(QKV, qk_norm="head"))), "weight role 'q_norm' is missing"),
    "q_norm is not wanted": (make("qkv_prep", [(T, 64)], A.QkvAttrs(QKV), q_norm=part("n", 8)), "weight role 'q_norm' is unknown; known: none"),
    "full q_norm": (
        make("qkv_prep", [(T, 64)], A.QkvAttrs(replace(QKV, qk_norm="full")), q_norm=part("n", 8), k_norm=part("m", 16)), r"has shape \[8\]; \[32\] is wanted"
    ),
    "neither": (make("qkv_prep", [(T, 64)], A.QkvAttrs(replace(QKV, has_q=False, has_kv=False))), "has neither q nor k and v"),
    "gate without q": (make("qkv_prep", [(T, 32)], A.QkvAttrs(replace(QKV, has_q=False, gate=True))), "but no q"),
    "kv_write heads": (make("kv_write", [(T, 2, 8), (T, 3, 8)], states=1), r"v without its last axis has shape \[T, 3\]; \[T, 2\]"),
    "kv_write state": (make("kv_write", [(T, 2, 8), (T, 2, 8)]), r"names 0 states \(none\); 1 wanted"),
    "q shape": (make("attention", [(T, 3, 8)], A.AttentionAttrs(ATTN), 1), r"q has shape \[T, 3, 8\]; \[T, 4, 8\] is wanted"),
    "k alone": (make("attention", [(T, 4, 8), (T, 2, 8)], A.AttentionAttrs(ATTN), 1), "k and v come together"),
    "nothing to read": (make("attention", [(T, 4, 8)], A.AttentionAttrs(ATTN)), "has neither a state nor k and v"),
    "segments": (make("attention", [(T, 4, 8), (T, 2, 8), (T, 2, 8), I_T], A.AttentionAttrs(ATTN)), "segments go with mask 'block'"),
    "no segments": (make("attention", [(T, 4, 8)], A.AttentionAttrs(replace(ATTN, mask="block")), 1), "segments go with mask 'block'"),
    "window": (make("attention", [(T, 4, 8)], A.AttentionAttrs(replace(ATTN, window=0)), 1), "window 0 must be above 0"),
    "sinks shape": (spec("sinks", q_heads=2, kv_heads=2), "q has shape"),
    "sinks weight": (changed("sinks", weights={}), "weight role 'sinks' is missing"),
    "mla q": (changed("mla", ins=(Value(0, (T, 40)), *GOOD["mla"][0].ins[1:])), r"q has shape \[T, 40\]; \[T, 48\]"),
    "mla kv_b": (changed("mla", weights={"kv_b": (part("kv_b", 60, 16),)}), r"has shape \[60, 16\]; \[64, 16\]"),
    "mla indexer": (spec("mla", indexer_top_k=4), "takes 7 inputs, got 4"),
    "top_k": (spec("moe_route", top_k=9), r"top_k 9 must lie in 1..8"),
    "groups": (spec("moe_route", groups=3), "8 experts in 3 groups"),
    "kept groups": (spec("moe_route", top_k=5), "top_k 5 exceeds the 4 experts of the kept groups"),
    "router": (changed("moe_route", weights={"router": (part("r", 7, 8),)}), r"has shape \[7, 8\]; \[8, 8\]"),
    "expert count": (changed("moe_experts", weights={**GOOD["moe_experts"][0].weights, "up": (part("u", 6, 5),)}), "role 'up' has 1 parts; 8 wanted"),
    "expert shape": (changed("moe_experts", weights={**GOOD["moe_experts"][0].weights, "down": (part("d", 6, 5),) * 8}), r"\[6, 5\]; \[5, 6\] is wanted"),
    "expert ids": (changed("moe_experts", ins=(*GOOD["moe_experts"][0].ins[:2], Value(2, (T, 2)))), r"\(ids\) must be i32"),
    "mixer kind": (spec("mamba2", kind="mamba3"), "recurrent kind 'mamba3' is unknown"),
    "mixer dims": (spec("mamba2", dims=(("heads", 2),)), "dims of mamba2 are conv, groups, head_dim, heads, state; got heads"),
    "mixer size 0": (spec("mamba1", dims=(("inner", 0), ("state", 4))), "must all be at least 1"),
    "mixer input": (changed("mamba2", ins=(Value(0, (T, 47)), Value(1, (T, 2)))), r"xbc has shape \[T, 47\]; \[T, 48\]"),
    "mixer conv": (changed("gated_delta", weights={**GOOD["gated_delta"][0].weights, "conv": (part("c", 64, 4, 1),)}), r"\[64, 4, 1\]; \[64, 1, 4\]"),
    "mixer weight": (changed("short_conv", weights={}), "weight role 'conv' is missing"),
    "mixer state": (changed("short_conv", states=()), "names 0 states"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_misfit_is_named(case: str) -> None:
    op, why = BAD[case]
    with pytest.raises(ProgramError, match=why) as caught:
        core_registry().get(op.kind).shape(op)
    assert str(caught.value).startswith(f"{op.kind} in layer.0.x: ")


def test_every_kind_has_a_good_and_a_bad_case() -> None:
    kinds = set(core_registry().kinds())
    assert kinds - {op.kind for op, _ in GOOD.values()} <= {"act", "add", "clip", "kv_write", "output", "position_scale", "scale", "softcap"}
    assert kinds - {op.kind for op, _ in BAD.values()} <= {"clip", "pool", "pos_embed", "position_scale", "scale", "softmax", "take", "mul"}


def test_states_of_mixers() -> None:
    assert recurrent_state(MAMBA2) == ((48, 3), (2, 8, 16))
    assert recurrent_state(DELTA) == ((64, 3), (4, 8, 8))
    assert recurrent_state(KDA) == ((40, 3), (2, 8, 4))
    assert recurrent_state(MAMBA1) == ((8, 4),)
    assert recurrent_state(SHORT) == ((8, 2),)


def test_the_registry_is_open_and_says_what_it_knows() -> None:
    registry = core_registry()
    registry.add(OpDef("mine", A.NoAttrs, lambda op: ()))
    assert "mine" in registry.kinds() and "mine" not in core_registry().kinds()
    with pytest.raises(ProgramError, match="op kind 'mine' is registered twice"):
        registry.add(OpDef("mine", A.NoAttrs, lambda op: ()))
    with pytest.raises(ProgramError, match="unknown op kind 'yours'; known: a"):
        OpRegistry({"a": registry.get("mine")}).get("yours")

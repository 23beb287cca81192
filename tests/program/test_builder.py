"""ProgramBuilder: values, regions, states, weights."""

from __future__ import annotations

import pytest

from llmx.errors import ProgramError
from llmx.kv.spec import KVSpec
from llmx.program.attrs import AttnSpec, QkvSpec
from llmx.program.builder import E, ModelBuilder, N, R, T, part
from llmx.program.ops import ActKey, QuantKey, Region, Sym, SymDiv, Transform
from tests.program.tiny import empty, llama


def test_values_have_fresh_ids_and_shapes_from_the_rules() -> None:
    b = empty()
    ids = b.input("ids")
    x = b.embed(ids, "table", 100, 8)
    y = b.linear(x, part("a", 6), part("b", 4, bias=True))
    assert (ids.id, x.id, y.id) == (0, 1, 2)
    assert (ids.shape, ids.dtype) == ((T,), "i32") and (x.shape, x.dtype) == ((T, 8), "act") and y.shape == (T, 10)
    assert [p.weight.shape for p in b.build().ops[-1].weights["w"]] == [(6, 8), (4, 8)]
    assert [p.bias.name if p.bias else None for p in b.build().ops[-1].weights["w"]] == [None, "b.bias"]


def test_region_nests_and_returns() -> None:
    b = empty()
    x = b.input("x", (T, 4), "act")
    with b.region("layer", 3, "attn"):
        y = b.scale(x, 2.0)
        with b.region("inner", 0):
            y = b.scale(y, 2.0)
    b.output("y", y)
    assert [op.region for op in b.build().ops] == [Region("layer", 3, "attn"), Region("inner", 0, ""), Region("model", 0, "")]


def test_a_scale_of_one_and_no_cap_add_no_op() -> None:
    b = empty()
    x = b.input("x", (T, 4), "act")
    assert b.scale(x, 1.0) is x and b.softcap(x, None) is x and not b.build().ops


def test_quant_is_asked_by_tensor_name() -> None:
    q4 = QuantKey("q4_1", (("data", "q4_1", 32),), ActKey("i8", 32))
    model = ModelBuilder(lambda name: q4 if name.endswith("q_proj.weight") else QuantKey("dense", (("data", "f32", 1),)))
    b = model.program("main")
    y = b.linear(b.input("x", (T, 32), "act"), part("q_proj", 4), part("k_proj", 4, transforms=(Transform("permute_rows", (2,)),)))
    b.output("y", y)
    q, k = b.build().ops[0].weights["w"]
    assert q.weight.quant is q4 and str(k.weight.quant) == "f32" and k.weight.transforms == (Transform("permute_rows", (2,)),)


def test_a_state_registered_twice_must_be_the_same() -> None:
    model = ModelBuilder()
    model.state("a", KVSpec("full", 2, 16, 16), "main")
    model.state("a", KVSpec("full", 2, 16, 16), "main")
    with pytest.raises(ProgramError, match="state 'a' is .* cannot also be"):
        model.state("a", KVSpec("full", 4, 16, 16), "main")


def test_names_are_taken_once() -> None:
    model = ModelBuilder()
    b = model.program("main")
    b.input("ids")
    with pytest.raises(ProgramError, match="input 'ids' exists already"):
        b.input("ids")
    with pytest.raises(ProgramError, match="program 'main' exists already"):
        model.program("main")


def test_an_op_that_does_not_fit_is_refused_when_it_is_written() -> None:
    b = empty()
    x, y = b.input("x", (T, 4), "act"), b.input("y", (T, 5), "act")
    with b.region("layer", 1, "mlp"), pytest.raises(ProgramError, match=r"add in layer.1.mlp: shapes \[T, 4\] and \[T, 5\]"):
        b.add(x, y)


def test_symbols() -> None:
    assert (str(T), str(N), str(R), str(E("audio") // 2)) == ("T", "N", "R", "E.audio//2")
    assert E("audio") == Sym("E.audio") and E("audio") // 2 == SymDiv(Sym("E.audio"), 2)


def test_attention_without_state_reads_its_own_keys() -> None:
    b = empty()
    q, k, v = b.qkv_prep(b.input("x", (T, 96), "act"), QkvSpec(4, 1, 16, 16))
    o = b.attention(None, q, k, v, spec=AttnSpec(4, 1, 16, 16, 0.25, "bidirectional"))
    assert o.shape == (T, 64) and b.build().ops[-1].states == ()


def test_llama_parts_carry_targets_and_splits() -> None:
    parts = {p.target: p for p in llama().programs["main"].parts()}
    assert parts["model.layers.0.self_attn.q_proj"].split == "heads"
    assert parts["model.layers.0.self_attn.v_proj"].split == "kv_heads"
    assert parts["model.layers.1.mlp.down_proj"].split == "ffn"
    assert parts["lm_head"].split == parts["model.embed_tokens"].split == "vocab"

"""verify: a good Model passes, and each planted fault is named with the program, the op and the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llmx.errors import ProgramError
from llmx.kv.spec import KVSpec
from llmx.program.attrs import AttentionAttrs, NoAttrs, NormAttrs, OutputAttrs, QkvAttrs, RecurrentAttrs, RecurrentSpec, RopeSpec, ScalarAttrs
from llmx.program.builder import R, T
from llmx.program.ops import Model, Op, Part, Program, QuantKey, Region, State, Value
from llmx.program.verify import verify
from tests.program.paper import eagle3, whisper
from tests.program.tiny import LLAMA, empty, llama

STATE = "layers.0.attn"
EMBED, NORM, QKV, PREP, WRITE, ATTN, O_PROJ, ADD = range(8)  # ops of the tiny Llama's first layer


def with_ops(model: Model, ops: list[Op] | tuple[Op, ...]) -> Model:
    main = model.programs["main"]
    return replace(model, programs={**model.programs, "main": replace(main, ops=tuple(ops))})


def edit(index: int, **fields: Any) -> Callable[[Model], Model]:
    """Other fields in one op of main."""

    def fault(model: Model) -> Model:
        ops = list(model.programs["main"].ops)
        ops[index] = replace(ops[index], **fields)
        return with_ops(model, ops)

    return fault


def edit_spec(**fields: Any) -> Callable[[Model], Model]:
    """Another AttnSpec in the first attention."""

    def fault(model: Model) -> Model:
        spec = replace(model.programs["main"].ops[ATTN].attrs.spec, **fields)
        return edit(ATTN, attrs=AttentionAttrs(spec))(model)

    return fault


def edit_state(**fields: Any) -> Callable[[Model], Model]:
    """Another spec of the first layer's State."""
    return lambda m: replace(m, states={**m.states, STATE: replace(m.states[STATE], spec=replace(m.states[STATE].spec, **fields))})


def edit_part(**fields: Any) -> Callable[[Model], Model]:
    """Another q_proj."""

    def fault(model: Model) -> Model:
        q, *rest = model.programs["main"].ops[QKV].weights["w"]
        return edit(QKV, weights={"w": (replace(q, **fields), *rest)})(model)

    return fault


def move(index: int, to: int) -> Callable[[Model], Model]:
    def fault(model: Model) -> Model:
        ops = list(model.programs["main"].ops)
        ops.insert(to, ops.pop(index))
        return with_ops(model, ops)

    return fault


def drop(index: int) -> Callable[[Model], Model]:
    return lambda m: with_ops(m, [op for i, op in enumerate(m.programs["main"].ops) if i != index])


def again(index: int) -> Callable[[Model], Model]:
    """An op twice, the second with new results."""

    def fault(model: Model) -> Model:
        ops = list(model.programs["main"].ops)
        twin = replace(ops[index], outs=tuple(replace(v, id=v.id + 10_000) for v in ops[index].outs))
        return with_ops(model, [*ops[: index + 1], twin, *ops[index + 1 :]])

    return fault


def add_input(model: Model) -> Model:
    main = model.programs["main"]
    return replace(model, programs={"main": replace(main, inputs={**main.inputs, "unused": Value(9_999, (T,), "i32")})})


def other_shape_of_tied(model: Model) -> Model:
    """The head under the embedding's name with fewer rows."""
    ops = list(model.programs["main"].ops)
    (head,) = ops[-2].weights["w"]
    small = replace(head, rows=500, weight=replace(head.weight, name="model.embed_tokens.weight", shape=(500, 64)))
    logits = Value(ops[-2].outs[0].id, (R, 500))
    ops[-2:] = [replace(ops[-2], weights={"w": (small,)}, outs=(logits,)), replace(ops[-1], ins=(logits,))]
    return with_ops(model, ops)


def wrong_dtype(model: Model) -> Model:
    out = replace(model.programs["main"].ops[NORM].outs[0], dtype="bf16")  # type: ignore[arg-type]
    return edit(NORM, outs=(out,))(model)


def no_kv_write_but_foreign(model: Model) -> Model:
    """A second Program that writes the State too."""
    b = empty()
    k, v = b.input("k", (T, 2, 16), "act"), b.input("v", (T, 2, 16), "act")
    b.kv_write(b.state(STATE, model.states[STATE].spec), k, v)
    return replace(model, programs={**model.programs, "draft": replace(b.build(), name="draft")})


def no_main(model: Model) -> Model:
    return replace(model, programs={"draft": replace(model.programs["main"], name="draft")})


NOTHING = Program("main", {}, ())
FAULTS: dict[str, tuple[Callable[[Model], Model], str]] = {
    "no main": (no_main, "the model has no program 'main'; it has draft"),
    "another name": (lambda m: replace(m, programs={"main": replace(m.programs["main"], name="other")}), "program 'main' calls itself 'other'"),
    "used before defined": (move(NORM, QKV), r"op 1 \(linear in layer.0.attn\): input 0 is %4, which no earlier op"),
    "unknown value": (edit(ADD, ins=(Value(777, (T, 64)), Value(778, (T, 64)))), r"op 7 \(add in layer.0.attn\): input 0 is %777"),
    "another shape than defined": (edit(ADD, ins=(Value(3, (T, 65)), Value(3, (T, 65)))), r"input 0 %3 is act \[T, 65\], but was defined as act \[T, 64\]"),
    "defined twice": (edit(NORM, outs=(Value(3, (T, 64)),)), "value %3 is defined twice"),
    "unknown dtype": (wrong_dtype, r"result %4 is bf16 \[T, 64\]; act \[T, 64\] follows"),
    "result shape": (edit(NORM, outs=(Value(4, (T, 32)),)), r"result %4 is act \[T, 32\]; act \[T, 64\] follows from its inputs"),
    "result count": (edit(NORM, outs=()), "has 0 results; 1 are wanted"),
    "unknown kind": (edit(NORM, kind="layernorm"), "unknown op kind 'layernorm'"),
    "attrs class": (edit(NORM, attrs=NoAttrs()), "attrs are NoAttrs; NormAttrs is wanted"),
    "attrs value": (edit(NORM, attrs=NormAttrs("batch", 1e-5)), "NormAttrs.kind is 'batch'; known: rms, layer, l2"),  # type: ignore[arg-type]
    "spec value": (edit_spec(mask="diagonal"), "AttnSpec.mask is 'diagonal'; known: causal"),
    "spec inside a spec": (
        lambda m: edit(PREP, attrs=QkvAttrs(replace(m.programs["main"].ops[PREP].attrs.spec, rope=RopeSpec("llama", 16, 1e4))))(m),  # type: ignore[arg-type]
        "RopeSpec.style is 'llama'; known: neox, gptj",
    ),
    "shape rule": (edit(QKV, ins=(Value(2, (R,), "i32"),)), r"op 2 \(linear in layer.0.attn\): input 0 \(x\) is i32"),
    "part rows": (edit_part(rows=32), r"q_proj.weight has shape \[64, 64\]; \[32, 64\] is wanted"),
    "part split": (edit_part(split="rows"), "has split 'rows'; known: heads"),
    "part target": (edit_part(target=""), "a part of role 'w' has no target"),
    "part twice": (edit_part(target="model.layers.0.self_attn.k_proj"), "part model.layers.0.self_attn.k_proj comes twice"),
    "weight without storage": (
        lambda m: edit_part(weight=replace(m.programs["main"].ops[QKV].weights["w"][0].weight, quant=QuantKey("int4", ())))(m),
        "is stored as 'int4' without tensors",
    ),
    "one tensor, two shapes": (other_shape_of_tied, r"weight model.embed_tokens.weight is used as \(512, 64\) bf16 and as \(500, 64\) bf16"),
    "unknown state": (lambda m: replace(m, states={k: s for k, s in m.states.items() if k != STATE}), f"state '{STATE}' is not in the model's table"),
    "state read before written": (move(WRITE, ATTN), f"reads state '{STATE}' before it is written"),
    "state written twice": (again(WRITE), f"writes state '{STATE}' a second time"),
    "state never written": (drop(WRITE), f"state '{STATE}' is owned by program 'main' and written by none"),
    "state with two writers": (no_kv_write_but_foreign, f"state '{STATE}' is owned by program 'main' and written by draft, main"),
    "state of no program": (
        lambda m: replace(m, states={**m.states, STATE: replace(m.states[STATE], owner="ghost")}), "is owned by program 'ghost', which does not exist"
    ),
    "state name": (lambda m: replace(m, states={**m.states, STATE: State("x", m.states[STATE].spec, "main")}), f"state '{STATE}' calls itself 'x'"),
    "state heads": (edit_state(kv_heads=4), r"k and v are \(2, 16, 16\) .* the pages \(4, 16, 16\)"),
    "state kind": (edit_state(kind="latent"), "pages of keys and values are needed"),
    "state window": (edit_state(kind="sliding", window=8), "attention sees a window of all tokens, the pages keep 8"),
    "state without window": (edit_state(kind="sliding"), "is sliding with window None"),
    "state without geometry": (edit_state(kv_heads=0), "its geometry is not said"),
    "chunk": (edit_state(kind="chunked", window=8), "attention has chunk None, the pages 8"),
    "attention heads": (edit_spec(v_head_dim=8), r"v has shape \[T, 2, 16\]; \[T, 2, 8\] is wanted"),
    "attention of other pages": (lambda m: edit(ATTN, ins=(m.programs["main"].ops[ATTN].ins[0],))(edit_spec(cross=True)(m)), "cross is True"),
    "region left": (edit(NORM, region=Region("layer", 0, "mlp")), "its region was left before; the ops of a region lie together"),
    "unused result": (again(O_PROJ), r"op 7 \(linear in layer.0.attn\): no op uses its results"),
    "unused input": (add_input, "no op uses input 'unused'"),
    "result named twice": (lambda m: with_ops(m, [*m.programs["main"].ops, m.programs["main"].ops[-1]]), "result 'logits' is named twice"),
    "no result": (lambda m: Model({"main": NOTHING}, {}), "has neither a result"),
    "axis 0": (lambda m: replace(m, programs={"main": replace(m.programs["main"], inputs={"ids": Value(0, (0,), "i32")})}), "an axis of size 0"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    plant, why = FAULTS[fault]
    verify(llama())
    with pytest.raises(ProgramError, match=why):
        verify(plant(llama()))


def test_a_mixer_needs_its_own_state() -> None:
    b = empty()
    spec = RecurrentSpec("short_conv", (("channels", 8), ("conv", 3), ("silu", 0)))
    b.state("pages", KVSpec("full", 2, 8, 8))
    weights = {"conv": b.tensor("conv.weight", 8, 1, 3)}
    b.output("y", b.emit1("recurrent", b.input("x", (T, 8), "act"), attrs=RecurrentAttrs(spec), weights=weights, states=["pages"]))
    with pytest.raises(ProgramError, match=r"does not fit state 'pages' \(full\): the state holds \(\), the op needs \(\(8, 2\),\)"):
        verify(b.model.build())


def test_a_cross_state_is_read_by_another_program_than_its_owner() -> None:
    transformers = pytest.importorskip("transformers")
    model = whisper.build(transformers.WhisperConfig(encoder_layers=1, decoder_layers=1).to_dict())
    verify(model)
    without = replace(model, programs={name: p for name, p in model.programs.items() if name != "cross_kv"})
    with pytest.raises(ProgramError, match="owned by program 'cross_kv', which does not exist"):
        verify(without)


def test_programs_of_one_model_agree_on_shared_weights() -> None:
    small = {**LLAMA, "num_hidden_layers": 8}
    model = eagle3.build(small, {**LLAMA, "draft_vocab_size": 100})
    verify(model)
    draft = model.programs["draft"]
    table: Part = draft.ops[0].weights["w"][0]
    wrong = replace(table, weight=replace(table.weight, quant=QuantKey("dense", (("data", "f32", 1),))))
    ops = (replace(draft.ops[0], weights={"w": (wrong,)}), *draft.ops[1:])
    with pytest.raises(ProgramError, match=r"program draft: weight model.embed_tokens.weight is used as \(512, 64\) bf16 and as \(512, 64\) f32"):
        verify(replace(model, programs={**model.programs, "draft": replace(draft, ops=ops)}))


def test_a_hand_written_program_verifies() -> None:
    x, y = Value(0, (T, 4)), Value(1, (T, 4))
    ops = (
        Op("scale", (x,), (y,), ScalarAttrs(2.0), region=Region("model", 0, "")),
        Op("output", (y,), (), OutputAttrs("y")),
    )
    verify(Model({"main": Program("main", {"x": x}, ops)}, {}))

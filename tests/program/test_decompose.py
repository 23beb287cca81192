"""Decompositions: what primitives compute is what the composite means, and the result is a Program that verifies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmx.program.attrs import QkvSpec, RopeSpec
from llmx.program.builder import T
from llmx.program.kinds import core_registry
from llmx.program.ops import Value
from llmx.program.passes.decompose import decompose
from llmx.program.verify import verify
from llmx.testing.numpy_programs import Interpreter, rms, rotate, silu
from tests.program.paper import falcon_h1, qwen3_next
from tests.program.tiny import LLAMA, empty, llama

ROWS = 5


def meaning(s: QkvSpec, x: np.ndarray, positions: np.ndarray, weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    """qkv_prep straight from the docstring of QkvSpec."""
    per_q = s.head_dim * (2 if s.gate else 1)
    sizes = ([s.q_heads * per_q] if s.has_q else []) + ([s.kv_heads * s.head_dim, s.kv_heads * s.v_head_dim] if s.has_kv else [])
    x = x if s.clip is None else np.clip(x, -s.clip, s.clip)
    pieces, outs, gate = np.split(x, np.cumsum(sizes)[:-1], axis=-1), [], None

    def normed(y: np.ndarray, role: str) -> np.ndarray:
        if s.qk_norm == "none":
            return y
        wide = y.reshape(ROWS, -1) if s.qk_norm == "full" else y
        return (rms(wide, s.norm_eps) * (weights[f"{role}.weight"] + s.norm_offset)).reshape(y.shape)

    def turned(y: np.ndarray, role: str) -> np.ndarray:
        y = normed(y, role) if s.qk_norm_before_rope else y
        y = y if s.rope is None else rotate(y, positions, s.rope)
        return y if s.qk_norm_before_rope else normed(y, role)

    if s.has_q:
        q = pieces.pop(0).reshape(ROWS, s.q_heads, per_q)
        q, gate = q[..., : s.head_dim], q[..., s.head_dim :].reshape(ROWS, -1)
        q = turned(q, "q_norm")
        if s.q_position_scale is not None:
            scale, floor = s.q_position_scale
            q = q * (1 + scale * np.log(1 + np.floor((positions + 1) / floor)))[:, None, None]
        outs.append(q)
    if s.has_kv:
        v = pieces[1].reshape(ROWS, s.kv_heads, s.v_head_dim)
        outs += [turned(pieces[0].reshape(ROWS, s.kv_heads, s.head_dim), "k_norm"), rms(v, s.norm_eps) if s.v_norm else v]
    return [*outs, gate] if s.gate and gate is not None else outs


ROPES = st.one_of(st.none(), st.builds(RopeSpec, style=st.sampled_from(["neox", "gptj"]), rotary_dim=st.sampled_from([2, 4, 8]), theta=st.just(100.0)))


@st.composite
def specs(draw: st.DrawFn) -> QkvSpec:
    kv_heads, part = draw(st.integers(1, 3)), draw(st.sampled_from(["both", "q", "kv"]))
    return QkvSpec(
        q_heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=8,
        v_head_dim=draw(st.sampled_from([4, 8])),
        has_q=part != "kv",
        has_kv=part != "q",
        gate=part != "kv" and draw(st.booleans()),
        clip=draw(st.sampled_from([None, 0.5])),
        qk_norm=draw(st.sampled_from(["none", "head", "full"])),
        norm_offset=draw(st.sampled_from([0.0, 1.0])),
        qk_norm_before_rope=draw(st.booleans()),
        v_norm=draw(st.booleans()),
        rope=draw(ROPES),
        q_position_scale=draw(st.sampled_from([None, (0.1, 4.0)])) if part != "kv" else None,
    )


@settings(max_examples=150, deadline=None)
@given(specs(), st.integers(0, 2**32 - 1))
def test_qkv_prep_means_its_primitives(spec: QkvSpec, seed: int) -> None:
    rng = np.random.default_rng(seed)
    width = spec.has_q * spec.q_heads * 8 * (2 if spec.gate else 1) + spec.has_kv * spec.kv_heads * (8 + spec.v_head_dim)
    b = empty()
    positioned = spec.rope is not None or spec.q_position_scale is not None
    x, positions = b.input("x", (T, width), "act"), b.input("positions") if positioned else None
    norms = spec.qk_norm != "none"
    outs = b.qkv_prep(x, spec, positions, "q_norm" if norms and spec.has_q else None, "k_norm" if norms and spec.has_kv else None)
    for i, out in enumerate(outs):
        b.output(str(i), out)
    program = decompose(b.build(), core_registry())
    assert "qkv_prep" not in {op.kind for op in program.ops}
    verify(replace(b.model.build(), programs={"main": program}))
    weights = {p.weight.name: rng.normal(size=p.weight.shape) for p in program.parts()}
    rows, at = rng.normal(size=(ROWS, width)), rng.integers(0, 50, ROWS)
    values = Interpreter(weights).values(program, {"x": rows, "positions": at})
    for out, want in zip(outs, meaning(spec, rows, at, weights), strict=True):
        np.testing.assert_allclose(values[out.id], want, rtol=1e-12, atol=1e-12)


def test_act_mul_means_act_of_gate_times_up() -> None:
    b = empty()
    out = b.act_mul(b.input("x", (T, 12), "act"), "silu")
    program = decompose(b.build(), core_registry())
    x = np.random.default_rng(1).normal(size=(ROWS, 12))
    assert [op.kind for op in program.ops] == ["split", "act", "mul"]
    np.testing.assert_allclose(Interpreter({}).values(program, {"x": x})[out.id], silu(x[:, :6]) * x[:, 6:])


@pytest.mark.parametrize("after", [True, False])
def test_a_gated_norm_multiplies_by_silu_of_the_gate(after: bool) -> None:
    b = empty()
    out = b.norm(b.input("x", (T, 12), "act"), "n", 1e-5, gate=b.input("z", (T, 12), "act"), groups=3, gate_after=after)
    program = decompose(b.build(), core_registry())
    rng = np.random.default_rng(2)
    x, z, w = rng.normal(size=(ROWS, 12)), rng.normal(size=(ROWS, 12)), rng.normal(size=12)

    def grouped(y: np.ndarray) -> np.ndarray:
        return rms(y.reshape(ROWS, 3, 4), 1e-5).reshape(ROWS, 12) * w

    want = grouped(x) * silu(z) if after else grouped(x * silu(z))
    np.testing.assert_allclose(Interpreter({"n.weight": w}).values(program, {"x": x, "z": z})[out.id], want)


def test_whole_models_verify_after_decomposition() -> None:
    transformers = pytest.importorskip("transformers")
    models = [
        llama(),
        falcon_h1.build(transformers.FalconH1Config(num_hidden_layers=1, mamba_rms_norm=True).to_dict()),
        qwen3_next.build(transformers.Qwen3NextConfig(num_hidden_layers=4, num_experts=16).to_dict()),
    ]
    for model in models:
        done = {name: decompose(p, core_registry()) for name, p in model.programs.items()}
        verify(replace(model, programs=done))
        assert not {"qkv_prep", "act_mul"} & {op.kind for op in done["main"].ops}
        assert list(model.programs["main"].parts()) == list(done["main"].parts())


def test_only_what_is_wanted_is_decomposed() -> None:
    program = llama().programs["main"]
    done = decompose(program, core_registry(), lambda op: op.kind == "act_mul")
    kinds = [op.kind for op in done.ops]
    assert kinds.count("qkv_prep") == LLAMA["num_hidden_layers"] and "act_mul" not in kinds
    ids = [v.id for op in done.ops for v in op.outs]
    assert len(ids) == len(set(ids))
    assert isinstance(done.outputs()["logits"], Value)

"""Every reference kernel against the plain reading of Programs in numpy (tests/program/reference.py), over pages and in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from llmx.kv.spec import KVSpec  # noqa: E402
from llmx.platform.torch_runtime import reference_kernels  # noqa: E402
from llmx.program import attrs as A  # noqa: E402
from llmx.program.builder import ModelBuilder, N, ProgramBuilder, T  # noqa: E402
from llmx.program.kinds import core_registry  # noqa: E402
from llmx.program.kinds.recurrent import recurrent_state  # noqa: E402
from llmx.program.ops import Model, QuantKey, Value  # noqa: E402
from llmx.program.passes.decompose import decompose  # noqa: E402
from llmx.program.verify import verify  # noqa: E402
from llmx.testing.numpy_programs import Interpreter, rotate, silu, softplus  # noqa: E402
from llmx.testing.op_cases import ATTENTION, HEAD_DIM, PLAIN, QKV, ROPE, WIDTH, Write, attention_width, attention_write, qkv_width, qkv_write  # noqa: E402
from tests.torch_executor.torch_model import run_program  # noqa: E402

F32 = QuantKey("dense", (("data", "f32", 1),))
H, D, ROWS = WIDTH, HEAD_DIM, 40


def written(write: Write, width: int = H) -> Model:
    """A model whose main program is `write(b, x, positions)`; its results are r0, r1, ..."""
    model = ModelBuilder(lambda name: F32)
    b = model.program("main")
    x, positions = b.input("x", (T, width), "act"), b.input("positions")
    results = write(b, x, positions)
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        b.output(f"r{i}", value)
    used = {v.id for op in b._ops for v in op.ins if v is not None}
    if positions.id not in used:  # verify wants every input used
        b.output("positions", b.emit1("position_scale", x, positions, attrs=A.PositionScaleAttrs(0.1, 4.0)))
    elif x.id not in used:
        b.output("x", b.scale(x, 2.0))
    return model.build()


def random_tensors(model: Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {ref.name: rng.normal(0.5, 0.4, ref.shape).astype(np.float32) for ref in model.weights().values()}


def values(width: int = H, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(rows, width)).astype(np.float32)


def check(write: Write, width: int = H, *, lengths: tuple[int, ...] = (ROWS,), chunks: int = 1, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """torch equals numpy, request by request."""
    model = written(write, width)
    verify(model)
    tensors, total = random_tensors(model), sum(lengths)
    given = {"x": values(width, total), "positions": np.concatenate([np.arange(n) for n in lengths]), **inputs}
    got = run_program(model, tensors, given, lengths, chunks)
    program, first = decompose(model.programs["main"], core_registry()), 0
    for length in lengths:
        own = {name: array[first : first + length].astype(np.float64) if name == "x" else array[..., first : first + length] for name, array in given.items()}
        want = Interpreter({name: t.astype(np.float64) for name, t in tensors.items()}).run(program, own)
        for name, expected in want.items():
            found = got[name] if expected.shape == got[name].shape else got[name][first : first + length]
            np.testing.assert_allclose(found, expected, atol=2e-5 * max(1.0, np.abs(expected).max()), rtol=0, err_msg=name)
        first += length
    return got


def _take(b: ProgramBuilder, x: Value, p: Value) -> Value:
    return b.take(x, p)


SIMPLE: dict[str, Write] = {**PLAIN, "take": _take}


@pytest.mark.parametrize("name", SIMPLE)
def test_ops_without_state(name: str) -> None:
    check(SIMPLE[name])


@pytest.mark.parametrize("kind", ["mean", "cls", "last", "all"])
def test_pool_is_one_row_per_request(kind: str) -> None:
    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        return b.emit1("pool", x, attrs=A.PoolAttrs(kind, normalize=True))  # type: ignore[arg-type]

    x, lengths = values(rows=12), (5, 7)
    got = run_program(written(write), {}, {"x": x, "positions": np.arange(12)}, lengths)["r0"]
    own = [x[:5], x[5:]]
    want = x if kind == "all" else np.stack([{"mean": o.mean(0), "cls": o[0], "last": o[-1]}[kind] for o in own])
    np.testing.assert_allclose(got, want / np.linalg.norm(want, axis=-1, keepdims=True), atol=1e-6)
    assert written(write).programs["main"].outputs()["r0"].shape[0] == (T if kind == "all" else N)


# -- qkv_prep and rope -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", QKV)
def test_qkv_prep_means_its_decomposition(name: str) -> None:
    check(qkv_write(QKV[name]), qkv_width(QKV[name]))


@pytest.mark.parametrize("axial", [False, True])
@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_rope_over_rows_of_positions(style: str, axial: bool) -> None:
    spec = A.RopeSpec(style, 12, 100.0, mrope_sections=(1, 2, 3), axial=axial)  # type: ignore[arg-type]
    got = _rope(spec, positions := np.random.default_rng(0).integers(0, 50, (3, ROWS)))
    np.testing.assert_allclose(got, rotate(values(32).reshape(ROWS, 2, 16).astype(np.float64), positions, spec), atol=1e-5)


def test_interleaved_sections_are_dealt_in_turn() -> None:
    positions = np.random.default_rng(0).integers(0, 50, (3, ROWS))
    got = _rope(A.RopeSpec("neox", 16, 100.0, mrope_sections=(4, 2, 2), mrope_interleaved=True), positions)
    row = np.array([0, 1, 2, 0, 1, 2, 0, 0])  # t h w t h w t t
    for frequency, section in enumerate(row):
        alone = rotate(values(32).reshape(ROWS, 2, 16).astype(np.float64), positions[section], A.RopeSpec("neox", 16, 100.0))
        np.testing.assert_allclose(got[..., [frequency, frequency + 8]], alone[..., [frequency, frequency + 8]], atol=1e-5)


def _rope(spec: A.RopeSpec, positions: np.ndarray) -> np.ndarray:
    model = ModelBuilder(lambda name: F32)
    b = model.program("main")
    x, p = b.input("x", (T, 32), "act"), b.input("positions", (3, T))
    b.output("r0", b.emit1("rope", b.view(x, T, 2, 16), p, attrs=A.RopeAttrs(spec, 2, 16)))
    return run_program(model.build(), {}, {"x": values(32), "positions": positions}, (ROWS,))["r0"]


SCALINGS: dict[str, tuple[Any, ...]] = {
    "linear": (("factor", 4.0),),
    "dynamic": (("factor", 2.0), ("original_max_position_embeddings", 64)),
    "llama3": (("factor", 8.0), ("high_freq_factor", 4.0), ("low_freq_factor", 1.0), ("original_max_position_embeddings", 32)),
    "yarn": (("factor", 4.0), ("original_max_position_embeddings", 64)),
    "longrope": (
        ("factor", 4.0), ("long_factor", (1.0, 1.5, 2.0, 3.0)), ("original_max_position_embeddings", 64), ("short_factor", (1.0, 1.1, 1.2, 1.3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rope_scalings_turn_by_the_frequencies_of_core(scaling: str) -> None:
    """The frequencies themselves are compared with transformers in tests/cpu/test_rope_tables.py; the length is the engine's, 256."""
    from llmx.program.positions import inverse_frequencies

    spec = A.RopeSpec("neox", D, 100.0, scaling, SCALINGS[scaling])  # type: ignore[arg-type]

    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        return b.emit1("rope", b.view(x, T, 3, D), p, attrs=A.RopeAttrs(spec, 3, D))

    x = values()
    got = run_program(written(write), {}, {"x": x, "positions": np.arange(ROWS)}, (ROWS,))["r0"]
    inverse, factor = inverse_frequencies(spec, 256)
    turn = np.exp(1j * np.arange(ROWS)[:, None] * inverse) * factor
    heads = x.reshape(ROWS, 3, D)
    want = (heads[..., :4] + 1j * heads[..., 4:]) * turn[:, None]
    np.testing.assert_allclose(got, np.concatenate([want.real, want.imag], -1), atol=1e-5)
    plain = run_program(
        written(lambda b, x, p: b.emit1("rope", b.view(x, T, 3, D), p, attrs=A.RopeAttrs(ROPE, 3, D))), {}, {"x": x, "positions": np.arange(ROWS)}, (ROWS,)
    )
    assert np.abs(got - plain["r0"]).max() > 1e-2


# -- attention ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("chunks", [1, 5])
def test_attention(name: str, chunks: int) -> None:
    s, kv = ATTENTION[name]
    if kv is None and chunks > 1:
        chunks = 1  # whole prompts only
    check(attention_write(s, kv), attention_width(s), lengths=(37, 16, 50), chunks=chunks)


def _plain(s: A.AttnSpec, x: np.ndarray, seen: np.ndarray, bias: np.ndarray | float = 0.0, sinks: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """o and log-sum-exp in float64, written out."""
    n = len(x)
    q, k, v = np.split(x.astype(np.float64), np.cumsum([s.q_heads * s.head_dim, s.kv_heads * s.head_dim]), -1)
    share = s.q_heads // s.kv_heads
    q, k, v = q.reshape(n, s.q_heads, -1), np.repeat(k.reshape(n, s.kv_heads, -1), share, 1), np.repeat(v.reshape(n, s.kv_heads, -1), share, 1)
    weights = np.exp(np.where(seen, np.einsum("thd,shd->hts", q, k) * s.scale + bias, -np.inf))
    total = weights.sum(-1) + (0.0 if sinks is None else np.exp(sinks.astype(np.float64))[:, None])
    return np.einsum("hts,shd->thd", weights / total[..., None], v).reshape(n, -1), np.log(total).T


MASKS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "chunk": ({"chunk": 7}, lambda i, j: (j <= i) & (i // 7 == j // 7)),
    "prefix": ({"mask": "prefix"}, lambda i, j: (j <= i) | ((i < 11) & (j < 11))),
    "block": ({"mask": "block", "chunk": 6}, lambda i, j: i // 6 == j // 6),
    "alibi, sinks and lse": ({"alibi": True, "sinks": True}, lambda i, j: j <= i),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_alibi_and_sinks(name: str) -> None:
    fields, rule = MASKS[name]
    s = A.AttnSpec(6, 2, D, D, 0.3, **fields)
    model = written(attention_write(s, KVSpec("full", 2, D, D), lse=True, **({"sinks": None} if s.sinks else {})), attention_width(s))  # type: ignore[arg-type]
    x, tensors = values(attention_width(s)), random_tensors(model)
    got = run_program(model, tensors, {"x": x, "positions": np.arange(ROWS)}, (ROWS,), prompt_len=11)
    i, j = np.arange(ROWS)[:, None], np.arange(ROWS)[None]
    slopes = np.array([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])  # six heads: the four of 4, then every other of 8
    o, lse = _plain(s, x, rule(i, j), slopes[:, None, None] * (j - i) if s.alibi else 0.0, tensors.get("sinks.weight"))
    np.testing.assert_allclose(got["r0"], o, atol=1e-5)
    np.testing.assert_allclose(got["r1"], lse, atol=1e-5)


def test_segments_see_each_other_only() -> None:
    s = A.AttnSpec(4, 2, D, D, 0.3, "block")
    model = ModelBuilder(lambda name: F32)
    b = model.program("main")
    x, segments = b.input("x", (T, attention_width(s)), "act"), b.input("segments")
    q, k, v = b.qkv_prep(x, A.QkvSpec(4, 2, D, D))
    b.output("r0", b.attention(None, q, k, v, spec=s, segments=segments))
    ids = np.array([0, 0, 1, 1, 1, 0, 2, 2, 1, 0] * 4)
    got = run_program(model.build(), {}, {"x": values(attention_width(s)), "segments": ids}, (25, 15))["r0"]
    for span in (slice(0, 25), slice(25, 40)):
        want, _ = _plain(s, values(attention_width(s))[span], ids[span][:, None] == ids[span][None])
        np.testing.assert_allclose(got[span], want, atol=1e-5)


# -- experts -----------------------------------------------------------------------------------------------------------

ROUTES: dict[str, A.MoeSpec] = {
    "softmax": A.MoeSpec(8, 3, ffn=4),
    "softmax, not normalised": A.MoeSpec(8, 3, normalize=False, ffn=4),
    "sigmoid, groups": A.MoeSpec(12, 4, "sigmoid", 4, 2, scale=2.5, ffn=4),
    "sigmoid, groups of one": A.MoeSpec(6, 2, "sigmoid", 6, 3, ffn=4),
}


@pytest.mark.parametrize("own", [None, "r.bias"], ids=["plain", "biased router"])
@pytest.mark.parametrize("name", ROUTES)
def test_routes(name: str, own: str | None) -> None:
    """With a correction that is added before the choice and does not weigh, and with a bias of the router, which does both."""
    spec = ROUTES[name]

    def write(b: ProgramBuilder, x: Value, p: Value) -> tuple[Value, ...]:
        weights = {"router": b.tensor("r.weight", spec.experts, H, bias=own), "bias": b.tensor("c.weight", spec.experts)}
        return b.emit("moe_route", x, attrs=A.MoeAttrs(spec), weights=weights)

    check(write)


@pytest.mark.parametrize("groups", [1, 4])
def test_ties_between_experts_and_groups_go_to_the_lowest_id(groups: int) -> None:
    """64 experts of 4 kinds: the choice among equals must be made by id, also where a sort would mix them."""
    spec = A.MoeSpec(64, 5, "sigmoid", groups, max(1, groups // 2), normalize=False, scale=2.0, ffn=4)
    model = ModelBuilder(lambda name: F32)
    b = model.program("main")
    x = b.input("x", (T, H), "act")
    w, ids = b.emit("moe_route", x, attrs=A.MoeAttrs(spec), weights={"router": b.tensor("r.weight", 64, H)})
    b.output("w", w)
    b.output("ids", ids)
    router = np.tile(np.random.default_rng(1).normal(size=(4, H)), (16, 1)).astype(np.float32)
    got = run_program(model.build(), {"r.weight": router}, {"x": values()}, (ROWS,))
    scores = 1 / (1 + np.exp(-(values().astype(np.float64) @ router[:4].astype(np.float64).T)))
    best = scores.argmax(-1)
    allowed = 64 if groups == 1 else 32  # all groups are equal: the first two stay
    assert got["ids"].tolist() == [[kind + 4 * i for i in range(5)] for kind in best] and got["ids"].max() < allowed
    np.testing.assert_allclose(got["w"], np.repeat(2 * scores.max(-1)[:, None], 5, 1), atol=1e-5)


# -- recurrent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mamba2", "gated_delta"])
@pytest.mark.parametrize("chunks", [1, 4])
def test_recurrent(kind: str, chunks: int) -> None:
    if kind == "mamba2":
        spec = A.RecurrentSpec("mamba2", (("conv", 4), ("groups", 2), ("head_dim", 3), ("heads", 4), ("state", 5)), limits=(0.1, 0.9))
        wide, rest, roles = 12 + 20, (4,), ("a_log", "d", "dt_bias")
    else:
        spec = A.RecurrentSpec("gated_delta", (("conv", 4), ("k_dim", 3), ("k_heads", 2), ("v_dim", 5), ("v_heads", 4)), eps=1e-3)
        wide, rest, roles = 12 + 20, (4, 4), ("a_log", "dt_bias")

    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        weights = {role: b.tensor(f"{role}.weight", 4) for role in roles}
        weights["conv"] = b.tensor("conv.weight", wide, 1, 4, bias="conv.bias")
        return b.recurrent("s", spec, *b.split(x, wide, *rest), weights=weights)

    check(write, wide + sum(rest), lengths=(9, 14), chunks=chunks)


def _alone(
    spec: A.RecurrentSpec, sizes: tuple[int, ...], weights: dict[str, tuple[int, ...]], chunks: int
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    def write(b: ProgramBuilder, x: Value, p: Value) -> Value:
        parts = b.split(x, *sizes) if len(sizes) > 1 else (x,)
        return b.recurrent("s", spec, *parts, weights={role: b.tensor(f"{role}.weight", *shape) for role, shape in weights.items()})

    model = written(write, sum(sizes))
    verify(model)
    tensors, x = random_tensors(model), values(sum(sizes), 12)
    got = run_program(model, tensors, {"x": x, "positions": np.arange(12)}, (12,), chunks)["r0"]
    return got, tensors, x.astype(np.float64)


@pytest.mark.parametrize("chunks", [1, 3])
def test_mamba1(chunks: int) -> None:
    spec = A.RecurrentSpec("mamba1", (("inner", 6), ("state", 4)))
    got, w, x = _alone(spec, (6, 6, 4, 4), {"a_log": (6, 4), "d": (6,)}, chunks)
    state = np.zeros(recurrent_state(spec)[0])
    for t, (u, dt, b, c) in enumerate(zip(*np.split(x, [6, 12, 16], -1), strict=True)):
        dt = softplus(dt)
        state = state * np.exp(-dt[:, None] * np.exp(w["a_log.weight"])) + (dt * u)[:, None] * b
        np.testing.assert_allclose(got[t], state @ c + w["d.weight"] * u, atol=1e-4)


@pytest.mark.parametrize("act", [0, 1])
@pytest.mark.parametrize("chunks", [1, 3])
def test_short_conv(chunks: int, act: int) -> None:
    spec = A.RecurrentSpec("short_conv", (("channels", 6), ("conv", 3), ("silu", act)))
    got, w, x = _alone(spec, (6,), {"conv": (6, 1, 3)}, chunks)
    padded = np.concatenate([np.zeros((2, 6)), x])
    want = sum(padded[i : i + 12] * w["conv.weight"][:, 0, i] for i in range(3))
    np.testing.assert_allclose(got, silu(want) if act else want, atol=1e-5)


# -- what is offered ---------------------------------------------------------------------------------------------------


def test_every_kind_of_core_has_a_kernel_or_is_refused_by_name() -> None:
    offered = {impl.kinds[0] for impl in reference_kernels()}
    assert set(core_registry().kinds()) - offered == {"conv1d", "hf_module", "merge_embeds"}
    assert all(impl.abi == "torch/1" and impl.priority == 0 for impl in reference_kernels())


@pytest.mark.parametrize(
    ("kind", "attrs", "why"),
    [
        ("attention", A.AttentionAttrs(A.AttnSpec(2, 2, D, D, 1.0, relative_buckets=8, cross=True)), "relative position bias, cross attention"),
        ("mla", A.MlaAttrs(A.MlaSpec(2, 4, 4, 4, 4, 1.0, ROPE, indexer_top_k=2)), "sparse attention"),
        ("recurrent", A.RecurrentAttrs(A.RecurrentSpec("kda", ())), "kda"),
    ],
)
def test_what_is_missing_says_so(kind: str, attrs: Any, why: str) -> None:
    from llmx.hooks.loader import load_target
    from llmx.platform.plan import OpSpec

    supports = next(impl.supports for impl in reference_kernels() if impl.kinds == (kind,))
    assert isinstance(supports, str) and why in load_target(supports)(OpSpec(kind, attrs))

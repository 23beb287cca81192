"""The native executor on whole models: against the numpy interpreter, and against itself under every batching."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.cpu.native_model import Driver, MemorySource, bundle_of, config_for, native_executor, tiny_llama
from tests.cpu.numpy_interpreter import Interpreter

from llmx.executor import ModelBundle, Want
from llmx.kv.spec import KVSpec
from llmx.program.attrs import AttnSpec, QkvSpec, RopeSpec
from llmx.program.builder import ModelBuilder, R, part
from llmx.weights.quant import quant_key
from llmx_cpu.lower.builder import KINDS
from llmx_cpu.native import ISA_NAMES, best_isa

LEVELS = ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]
PROMPT = [int(t) for t in np.random.default_rng(7).integers(0, 512, 83)]


def native_logprobs(bundle: ModelBundle, chunk: int = 1000, **options: object) -> np.ndarray:
    """f32 [chunks, V]: log-probabilities by id after the last token of each chunk of the prompt."""
    executor = native_executor(bundle, config_for(**options))  # type: ignore[arg-type]
    driver = Driver(executor)
    driver.join({3: PROMPT})
    rows = []
    want = Want(top_logprobs=0, ids=np.arange(bundle.vocab_size, dtype=np.int32))
    for at in range(0, len(PROMPT), chunk):
        out = driver.step({3: PROMPT[at : at + chunk]}, want=want)
        assert out.lp is not None
        rows.append(out.lp[0, 0, 1:])
    executor.close()
    return np.stack(rows)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def gemma_like() -> ModelBundle:
    """Scaled embedding, offset norms, per-head q/k norm, window, soft caps, gelu_tanh, wide heads."""
    model = ModelBuilder(lambda name: quant_key("f32" if "norm" in name else "bf16"))
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "embed", 512, 48, scale=48**0.5)
    qkv = QkvSpec(4, 1, 32, 32, qk_norm="head", norm_offset=1.0, rope=RopeSpec("neox", 32, 10000.0))
    for i in range(2):
        with b.region("layer", i, "attn"):
            window = 17 if i == 0 else None
            h = b.norm(x, f"l{i}.norm1", 1e-6, offset=1.0)
            q, k, v = b.qkv_prep(b.linear(h, part(f"l{i}.qkv", 6 * 32)), qkv, positions, f"l{i}.q_norm", f"l{i}.k_norm")
            state = b.state(f"layers.{i}.attn", KVSpec("sliding" if window else "full", 1, 32, 32, window))
            b.kv_write(state, k, v)
            o = b.attention(state, q, k, v, spec=AttnSpec(4, 1, 32, 32, 0.2, window=window, soft_cap=30.0))
            x = b.add(x, b.norm(b.linear(o, part(f"l{i}.o", 48)), f"l{i}.norm2", 1e-6, offset=1.0))
        with b.region("layer", i, "mlp"):
            up = b.linear(b.norm(x, f"l{i}.norm3", 1e-6, offset=1.0), part(f"l{i}.gate", 80), part(f"l{i}.up", 80))
            x = b.add(x, b.linear(b.act_mul(up, "gelu_tanh"), part(f"l{i}.down", 48)))
    b.output("logits", b.softcap(b.linear(b.rows(b.norm(x, "norm", 1e-6, offset=1.0), head), part("lm_head", 512)), 25.0))
    return bundle_of(model.build())


def gpt_like() -> ModelBundle:
    """Learned positions, layer norm with bias, biases everywhere, clip, partial rotary in pairs, gate, full-width norm, alibi, odd widths."""
    model = ModelBuilder(lambda name: quant_key("f32" if "norm" in name or name.endswith("bias") else "f16"))
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.add(b.embed(ids, "embed", 512, 40), b.pos_embed(positions, "pos.weight", 2060, 40, 2))
    qkv = QkvSpec(4, 4, 20, 20, gate=True, clip=3.0, qk_norm="full", rope=RopeSpec("gptj", 12, 1000.0), qk_norm_before_rope=False, q_position_scale=(0.1, 16.0))
    for i in range(2):
        h = b.norm(x, f"l{i}.norm1", 1e-5, "layer", bias=True)
        q, k, v, gate = b.qkv_prep(b.linear(h, part(f"l{i}.qkv", 4 * 80, bias=True)), qkv, positions, f"l{i}.q_norm", f"l{i}.k_norm")
        state = b.state(f"layers.{i}.attn", KVSpec("full", 4, 20, 20))
        b.kv_write(state, k, v)
        o = b.mul(b.attention(state, q, k, v, spec=AttnSpec(4, 4, 20, 20, 0.3, alibi=i == 1)), b.act(gate, "sigmoid"))
        left, right = b.split(b.linear(o, part(f"l{i}.o", 40, bias=True)), 13, 27)
        x = b.add(x, b.concat(left, right))
        m = b.act(b.linear(b.norm(x, f"l{i}.norm2", 1e-5, "layer", bias=True), part(f"l{i}.fc", 77, bias=True)), ("gelu", "relu2")[i])
        x = b.add(x, b.scale(b.linear(m, part(f"l{i}.proj", 40, bias=True)), 0.7))
    b.output("logits", b.linear(b.rows(b.norm(x, "norm", 1e-5, "layer", bias=True), head), part("lm_head", 512)))
    return bundle_of(model.build())


def parallel_block() -> ModelBundle:
    """One norm that two products read, and an add of three values: nothing here flows as a fusion by kinds would have it."""
    model = ModelBuilder(lambda name: quant_key("f32" if "norm" in name else "q8_0"))
    b = model.program("main")
    x = b.embed(b.input("ids"), "embed", 512, 64)
    h = b.norm(x, "norm1", 1e-5)
    one, two = b.linear(h, part("one", 64)), b.linear(h, part("gate", 64), part("up", 64))
    x = b.add(x, b.add(one, one))
    y = b.linear(b.act_mul(two, "silu"), part("down", 64))
    x = b.add(b.mul(y, y), x)
    b.output("logits", b.linear(b.rows(b.norm(x, "norm", 1e-5), b.input("head", (R,))), part("lm_head", 512)))
    return bundle_of(model.build())


def outlier_channel() -> ModelBundle:
    """One channel of the MLP's input is far larger than the others, as in trained models."""
    bundle = tiny_llama("q4_1", "q8_0", hidden_size=256, intermediate_size=288)
    assert isinstance(bundle.weights, MemorySource)
    for name, tensor in bundle.weights.tensors.items():
        if "post_attention_layernorm" in name:
            tensor.data.view(np.float32).reshape(-1)[40] = 12.0
    return bundle


MODELS: dict[str, Callable[[], ModelBundle]] = {
    "llama-f32": lambda: tiny_llama("f32"),
    "llama-q4_1": lambda: tiny_llama("q4_1", "q8_0"),
    "llama-q4_0": lambda: tiny_llama("q4_0", "q4_0"),
    "llama-bf16": lambda: tiny_llama("bf16"),
    "qwen3-q8_0": lambda: tiny_llama("q8_0", model_type="qwen3", head_dim=32, tie_word_embeddings=False),
    "gemma-bf16": gemma_like,
    "gpt-f16": gpt_like,
}


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_float32_equals_interpreter(name: str, isa: str) -> None:
    """dtype float32: products of dequantised weights and f32 pages; only the order of additions differs."""
    bundle = MODELS[name]()
    want = log_softmax(Interpreter(bundle.model.programs["main"], bundle.weights).logits(PROMPT))
    got = native_logprobs(bundle, chunk=7, dtype="float32", isa=isa)
    ends = [*range(6, len(PROMPT) - 1, 7), len(PROMPT) - 1]
    assert np.abs(got - want[ends]).max() < 2e-4


# Largest and root-mean-square difference of log-probabilities. The interpreter rounds what the executor rounds, but a value near a
# tie may round the other way, and the executor rounds attention probabilities to bf16 too.
BOUNDS = {"int16": (0.16, 0.04), "int8": (0.25, 0.06), "auto": (0.25, 0.06)}


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("act", BOUNDS)
@pytest.mark.parametrize("name", MODELS)
def test_auto_is_near_interpreter_with_the_same_rounding(name: str, act: str, isa: str) -> None:
    bundle = MODELS[name]()
    want = log_softmax(Interpreter(bundle.model.programs["main"], bundle.weights, act).logits(PROMPT))
    got = native_logprobs(bundle, chunk=len(PROMPT), isa=isa, act=act)
    error = np.abs(got[-1] - want[-1])
    assert error.max() < BOUNDS[act][0] and np.sqrt((error**2).mean()) < BOUNDS[act][1]


@pytest.mark.parametrize("isa", LEVELS)
def test_early_rows_are_int16_in_outlier_blocks_only(isa: str) -> None:
    """Between int8 and int16: the block with the outlier has most of the rounding error."""
    bundle = outlier_channel()
    wanted = log_softmax(Interpreter(bundle.model.programs["main"], bundle.weights).logits(PROMPT))[59]
    rounded = log_softmax(Interpreter(bundle.model.programs["main"], bundle.weights, "auto").logits(PROMPT))[59]
    errors = {}
    for act in ("int8", "auto", "int16"):
        got = native_logprobs(bundle, chunk=60, isa=isa, kv="float32", act=act)[0]
        errors[act] = float(np.sqrt(((got - wanted) ** 2).mean()))
        if act == "auto":
            assert np.sqrt(((got - rounded) ** 2).mean()) < 0.5 * errors[act]
    assert errors["int16"] * 3 < errors["auto"] < errors["int8"] / 1.1, errors


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("scheme", ["q4_0", "q4_1", "q8_0"])
def test_int16_inputs_are_as_good_as_float32(scheme: str, isa: str) -> None:
    """With f32 pages nothing but the int16 rounding of inputs is left: about 1 / 65,000 of a block's largest value."""
    bundle = tiny_llama(scheme)
    want = log_softmax(Interpreter(bundle.model.programs["main"], bundle.weights).logits(PROMPT))
    got = native_logprobs(bundle, chunk=len(PROMPT), isa=isa, kv="float32", act="int16")
    assert np.abs(got[-1] - want[-1]).max() < 2e-3


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", ["llama-f32", "gemma-bf16", "gpt-f16"])
def test_int8_pages_are_near_float32_ones(name: str, isa: str) -> None:
    """Everything else in float32. Pages take 1 byte per element and 4 per (token, head)."""
    bundle = MODELS[name]()
    want, got = (native_logprobs(bundle, chunk=len(PROMPT), isa=isa, dtype="float32", kv=kv)[-1] for kv in ("float32", "int8"))
    error = np.abs(got - want)
    assert 0 < error.max() < BOUNDS["int8"][0] and np.sqrt((error**2).mean()) < BOUNDS["int8"][1]
    executors = [native_executor(bundle, config_for(dtype="float32", kv=kv)) for kv in ("float32", "int8")]
    wide, narrow = (executor.kv_needs()[0] for executor in executors)
    assert (wide.dtype, narrow.dtype) == ("f32", "i8")
    spec = wide.spec
    assert narrow.block_bytes == wide.block_bytes // 4 + len(wide.states) * spec.kv_heads * 2 * 4 * 16
    for executor in executors:
        executor.close()


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "act"), [("auto", "int16"), ("auto", "int8"), ("auto", "auto"), ("float32", "auto")])
@pytest.mark.parametrize("name", [*MODELS, "parallel", "outlier"])
def test_fused_ops_give_the_bits_of_single_ones(name: str, dtype: str, act: str, threads: int, isa: str) -> None:
    make = {"parallel": parallel_block, "outlier": outlier_channel}.get(name) or MODELS[name]
    fused, single = (native_logprobs(make(), chunk=50, isa=isa, dtype=dtype, act=act, threads=threads, fuse=fuse) for fuse in (True, False))
    assert np.array_equal(fused, single)


def test_fusion_is_used_where_values_flow() -> None:
    """A llama layer: norm and qkv, o and add, the whole mlp; a normed row that two products read is not fused away."""
    config = config_for()
    for make, expected in ((lambda: tiny_llama("q4_1"), {"linear": 2 * 2 + 1, "mlp": 2, "norm": 1}), (parallel_block, {"linear": 4, "norm": 2})):
        executor = native_executor(make(), config)
        tape = executor._tape
        assert tape is not None
        kinds = [op.kind for op in tape.ops]
        assert {kind: kinds.count(KINDS[kind]) for kind in expected} == expected
        executor.close()


RUNS = [*(("llama-q4_1", act, "auto") for act in BOUNDS), ("llama-bf16", "auto", "auto"), ("llama-bf16", "auto", "int8"),
        ("gemma-bf16", "auto", "auto"), ("gemma-bf16", "auto", "int8"), ("gpt-f16", "auto", "auto")]  # fmt: skip


@pytest.mark.parametrize(("name", "act", "kv"), RUNS)
@pytest.mark.parametrize("isa", LEVELS)
def test_bits_do_not_depend_on_batch_chunks_or_threads(name: str, act: str, kv: str, isa: str) -> None:
    """One request alone, among others, in chunks of 1, 7 and 100, with 1 and 2 threads: the same bits."""
    rng = np.random.default_rng(3)
    prompts = {s: [int(t) for t in rng.integers(0, 512, n)] for s, n in enumerate((83, 5, 1, 40, 17, 130, 2, 64, 33))}
    seen = []
    for threads, chunk, together in ((1, 1000, False), (1, 1, False), (1, 7, True), (2, 100, True), (2, 1000, True)):
        executor = native_executor(MODELS[name](), config_for(threads=threads, isa=isa, act=act, kv=kv))
        driver = Driver(executor)
        if together:
            seen.append(driver.generate(prompts, 4, chunk))
        else:
            seen.append({s: driver.generate({s: p}, 4, chunk)[s] for s, p in prompts.items()})
        executor.close()
    assert all(one == seen[0] for one in seen[1:])

"""Adapters on the native executor: what they add, and that a row's bits do not depend on anybody else's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from llmx.executor import AdapterPart, Control, HostTensor, LoraPart, ModelBundle, WholePart
from llmx.testing import bundle_from, tensors_of, tiny_llama
from llmx.weights.quant import quantize
from llmx_cpu.executor import NativeExecutor
from llmx_cpu.native import ISA_NAMES, best_isa
from tests.cpu.native_model import Driver, config_for, native_executor

LEVELS = ISA_NAMES[: ISA_NAMES.index(best_isa()) + 1]
BIASES = {"attention_bias": True, "mlp_bias": True}
PROMPTS = {0: list(range(5, 42)), 1: list(range(60, 63)), 2: list(range(100, 133)), 3: [7, 8, 9, 10, 11], 4: list(range(5, 42))}
LORA = {0: 2, 1: 0, 2: 1, 3: 0}  # 4: the base


def stored(values: np.ndarray, dtype: str) -> HostTensor:
    return quantize(values.astype(np.float32), dtype)


def adapter(bundle: ModelBundle, seed: int, rank: int = 4, dtype: str = "f32", ends: tuple[str, ...] = ("proj",), dora: bool = False) -> dict[str, LoraPart]:
    """Random matrices for every linear whose name ends so."""
    rng, parts = np.random.default_rng(seed), dict[str, LoraPart]()
    for part in bundle.model.programs["main"].parts():
        if part.target.endswith(ends):
            rows, columns = part.weight.shape
            a, b = rng.normal(0, 0.3, (rank, columns)), rng.normal(0, 0.3, (rows, rank))
            magnitude = rng.uniform(1.0, 3.0, rows).astype(np.float32) if dora else None
            parts[part.target] = AdapterPart(stored(a, dtype), stored(b, dtype), 0.5, magnitude)
    assert parts
    return parts


def loaded(bundle: ModelBundle, adapters: Mapping[int, Mapping[str, LoraPart]], **config: object) -> NativeExecutor:
    executor = native_executor(bundle, config_for(**config))  # type: ignore[arg-type]
    for slot, parts in adapters.items():
        reply = executor.control(Control("lora_add", {"slot": slot, "parts": parts}))
        assert reply.ok, reply.error
    return executor


def three(bundle: ModelBundle) -> dict[int, dict[str, LoraPart]]:
    """Different ranks, types and modules; the first and the last also at the embedding, two with weights of their own."""
    return {
        0: {**adapter(bundle, 1, rank=3, dtype="bf16"), **table(bundle, 6, "bf16")},
        1: {
            **adapter(bundle, 2, rank=8, dtype="f16", ends=("q_proj", "v_proj", "down_proj", "lm_head")),
            **whole(bundle, 7, "f16", ("embed_tokens", "o_proj")),
        },
        2: {
            **adapter(bundle, 3, rank=17, dora=True),
            **table(bundle, 8, "f32", dora=True),
            **whole(bundle, 9, "bf16", ("lm_head", "0.mlp.up_proj", "1.mlp.down_proj")),
        },
    }


def table(bundle: ModelBundle, seed: int, dtype: str, rank: int = 5, dora: bool = False) -> dict[str, LoraPart]:
    """A LoRA of the embedding."""
    rng, (vocab, width) = np.random.default_rng(seed), shapes(bundle)["model.embed_tokens"]
    magnitude = rng.uniform(1.0, 3.0, width).astype(np.float32) if dora else None
    a, b = rng.normal(0, 0.3, (rank, vocab)), rng.normal(0, 0.3, (width, rank))
    return {"model.embed_tokens": AdapterPart(stored(a, dtype), stored(b, dtype), 0.5, magnitude)}


def whole(bundle: ModelBundle, seed: int, dtype: str, ends: tuple[str, ...]) -> dict[str, LoraPart]:
    """Weights that stand in the place of the model's own."""
    rng = np.random.default_rng(seed)
    return {name: WholePart(stored(rng.normal(0, 0.1, shape), dtype)) for name, shape in shapes(bundle).items() if name.endswith(ends)}


def shapes(bundle: ModelBundle) -> dict[str, tuple[int, ...]]:
    """Part.target -> shape of its weight."""
    return {part.target: part.weight.shape for part in bundle.model.programs["main"].parts() if part.target}


@pytest.mark.parametrize(("level", "dora", "biases"), [*product(LEVELS, (False, True), (False, True))])
def test_equals_merged_weights(level: str, dora: bool, biases: bool) -> None:
    bundle = tiny_llama("f32", tie_word_embeddings=False, **(BIASES if biases else {}))
    parts = adapter(bundle, 5, rank=5, ends=("proj", "lm_head"), dora=dora)
    tensors = {name: values.astype(np.float32) for name, values in tensors_of(bundle).items()}
    for target, part in parts.items():
        assert isinstance(part, AdapterPart)
        merged_weight = tensors[f"{target}.weight"] + 0.5 * part.b.data.view(np.float32) @ part.a.data.view(np.float32)
        if part.magnitude is not None:
            merged_weight *= (part.magnitude / np.linalg.norm(merged_weight, axis=1))[:, None]
        tensors[f"{target}.weight"] = merged_weight
    merged = Driver(native_executor(bundle_from(bundle.model, tensors), config_for("float32", isa=level))).generate(PROMPTS, 4)
    got = Driver(loaded(bundle, {0: parts}, dtype="float32", isa=level)).generate(PROMPTS, 4, lora=dict.fromkeys(PROMPTS, 0))
    plain = Driver(loaded(bundle, {}, dtype="float32", isa=level)).generate(PROMPTS, 4)
    for slot in PROMPTS:
        assert [t for t, _ in got[slot]] == [t for t, _ in merged[slot]]
        np.testing.assert_allclose(got[slot][0][1][0], merged[slot][0][1][0], atol=2e-3)
        assert got[slot] != plain[slot]


@pytest.mark.parametrize("scheme", ["f32", "bf16", "q4_0", "q4_1", "q8_0"])
@pytest.mark.parametrize("biases", [False, True])
def test_bits_are_a_rows_own(scheme: str, biases: bool) -> None:
    """Alone and mixed, whole and in chunks, one thread and two, fused and not; base rows are those of an executor that has no adapters."""
    bundle = tiny_llama(scheme, **(BIASES if biases else {}))
    adapters = three(bundle)
    alone = {}
    executor = loaded(bundle, adapters)
    for slot, prompt in PROMPTS.items():
        alone[slot] = Driver(executor).generate({slot: prompt}, 5, lora=LORA)[slot]
    assert Driver(executor).generate(PROMPTS, 5, lora=LORA) == alone
    assert Driver(executor).generate(PROMPTS, 5, chunk=3, lora=LORA) == alone
    assert Driver(loaded(bundle, adapters, threads=2, fuse=False)).generate(PROMPTS, 5, chunk=9, lora=LORA) == alone
    assert Driver(loaded(bundle, {})).generate({4: PROMPTS[4]}, 5)[4] == alone[4] != alone[0]


@pytest.mark.parametrize("level", LEVELS)
def test_fused_equals_unfused_at_every_level(level: str) -> None:
    bundle = tiny_llama("q4_1", "q8_0", **BIASES)
    fused, apart = (loaded(bundle, three(bundle), isa=level, fuse=fuse) for fuse in (True, False))
    assert Driver(fused).generate(PROMPTS, 4, lora=LORA) == Driver(apart).generate(PROMPTS, 4, lora=LORA)


def test_a_slot_is_filled_again_and_emptied() -> None:
    bundle = tiny_llama("q4_1", "q8_0")
    first, second = adapter(bundle, 1), adapter(bundle, 2)
    executor = loaded(bundle, {3: first})
    one = Driver(executor).generate({0: PROMPTS[0]}, 4, lora={0: 3})
    executor.control(Control("lora_add", {"slot": 3, "parts": second}))
    two = Driver(executor).generate({0: PROMPTS[0]}, 4, lora={0: 3})
    assert two == Driver(loaded(bundle, {0: second})).generate({0: PROMPTS[0]}, 4, lora={0: 0}) != one
    executor.control(Control("lora_remove", {"slot": 3}))
    with pytest.raises(Exception, match="holds no adapter"):
        Driver(executor).generate({0: PROMPTS[0]}, 4, lora={0: 3})

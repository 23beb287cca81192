"""GGUF files, written as their converters write them, mean what the checkpoints mean that they were made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

from llmx.config import ModelConfig  # noqa: E402
from llmx.errors import ModelError  # noqa: E402
from llmx.models.gemma import read_gemma  # noqa: E402
from llmx.models.load import load_model  # noqa: E402
from llmx.weights.names import GGUF_ARCHITECTURES, config_from_gguf  # noqa: E402
from llmx.weights.quant import dequantize  # noqa: E402
from llmx.weights.safetensors import SafetensorsSource  # noqa: E402
from tests.families.cases import CASES, LONGROPE, SHARED, Case  # noqa: E402
from tests.families.checkpoint import PROMPT, write_checkpoint  # noqa: E402
from tests.families.page import LIMIT  # noqa: E402
from tests.families.run import in_memory, logits_of  # noqa: E402

SETTINGS: dict[str, Any] = {
    "block_count": 3, "context_length": 64, "embedding_length": SHARED["hidden_size"], "feed_forward_length": SHARED["intermediate_size"],
    "attention.head_count": 6, "attention.head_count_kv": 2, "attention.key_length": 24, "attention.value_length": 24,
    "attention.layer_norm_rms_epsilon": 1e-3, "rope.freq_base": 500.0,
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "attention.sliding_window": 12, "attention.sliding_window_pattern": 3, "rope.freq_base": 2000.0, "rope.freq_base_swa": 100.0,
    "rope.scaling.type": "linear", "rope.scaling.factor": 4.0,
}  # fmt: skip
SMALL_HEADS = {"attention.key_length": 16, "attention.value_length": 16}
GRANITE = {"embedding_scale": 3.0, "attention.scale": 0.4, "residual_scale": 0.6, "logit_scale": 0.7}
LONG_FACTORS = {"rope_factors_short.weight": LONGROPE["short_factor"], "rope_factors_long.weight": LONGROPE["long_factor"]}
PHI3 = {**SMALL_HEADS, "block_count": 2, "rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": (1 + np.log(4) / np.log(16)) ** 0.5}
# architecture[:which] -> case, changes of its fields (what a file has no place for), settings of the file
FILES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma2": (
        "gemma 2",
        {"query_pre_attn_scalar": 24},
        {"attention.sliding_window": 12, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
    ),
    "gemma3": ("gemma 3", {"query_pre_attn_scalar": 24}, GEMMA3),
    "granite": ("granite 3", {"attention_bias": False, "mlp_bias": False}, {**SMALL_HEADS, **GRANITE, "block_count": 2}),
    "olmo2": ("olmo 2", {}, {**SMALL_HEADS, "block_count": 2}),
    "phi3": ("phi-3, rope longrope (long)", {}, {**PHI3, "rope.dimension_count": 16}),
    "phi3:part of the head": ("phi-3", {}, {**SMALL_HEADS, "block_count": 2, "rope.dimension_count": 8, "attention.sliding_window": 12}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 4, "use_sliding_window": False}, {**SMALL_HEADS, "block_count": 5}),
    "llama": ("llama 1, 2", {}, {**SMALL_HEADS, "block_count": 2}),
    "mistral": ("mistral", {}, {"attention.sliding_window": 12, "block_count": 2}),
    "qwen2": ("qwen2.5, tied, rope yarn", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, {**SMALL_HEADS, "block_count": 2}),
    "qwen3": ("qwen3", {}, {"block_count": 2}),
}


def write_gguf(checkpoint: Path, path: Path, architecture: str, settings: dict[str, Any]) -> None:
    """The converter's work: gguf's own names, rows of q and k as pairs in the llama family, 1 added to the norms of Gemma."""
    source, writer = SafetensorsSource(str(checkpoint)), gguf.GGUFWriter(path, architecture)
    kind = next((kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), gguf.MODEL_ARCH.LLAMA)
    names = gguf.get_tensor_name_map(kind, settings["block_count"])
    for key, value in settings.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{architecture}.{key}", value)
    for name in source.names():
        values = dequantize(source.raw(name)).astype(np.float32)
        if "norm" in name and architecture.startswith("gemma"):
            values = values + 1.0
        heads = settings["attention.head_count" if "q_proj" in name else "attention.head_count_kv"]
        if architecture in ("llama", "mistral", "granite", "smollm3") and ("q_proj" in name or "k_proj" in name):
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(values))
    for name, factors in (LONG_FACTORS if "rope.scaling.attn_factor" in settings else {}).items():
        writer.add_tensor(name, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_every_architecture_has_a_file() -> None:
    assert {key.partition(":")[0] for key in FILES} == set(GGUF_ARCHITECTURES)


@pytest.mark.parametrize("key", FILES)
def test_a_file_equals_transformers(key: str, tmp_path: Path) -> None:
    name, changes, settings = FILES[key]
    architecture = key.partition(":")[0]
    case: Case = next(c for c in CASES if c.name == name)
    want = write_checkpoint(replace(case, fields={**case.fields, **changes}), tmp_path / "hf")
    write_gguf(tmp_path / "hf", tmp_path / "model.gguf", architecture, {**SETTINGS, **settings})
    loaded = load_model(ModelConfig(str(tmp_path / "model.gguf"), dtype="float32", max_model_len=len(PROMPT)))
    assert (loaded.bundle.architecture, loaded.summary.context_length) == (case.model, 64)
    got = logits_of(in_memory(loaded.bundle), PROMPT)
    assert np.abs(got - want).max() <= LIMIT * want.std()


def config_of(architecture: str, settings: dict[str, Any]) -> dict[str, Any]:
    metadata = {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in settings.items()}}
    return config_from_gguf(metadata, {"token_embd.weight": (512, 96)}, {}, "m.gguf")


def test_what_a_gemma3_file_leaves_out() -> None:
    """Every sixth layer full, bases 1,000,000 and 10,000, no scaling."""
    bare = {key: value for key, value in SETTINGS.items() if not key.startswith("rope")}
    c = read_gemma(config_of("gemma3", {**bare, "block_count": 7, "attention.sliding_window": 12}))
    assert c.windows == (12,) * 5 + (None, 12) and c.ropes is not None
    assert [(rope.theta, rope.scaling) for rope in c.ropes if rope is not None] == [(1e4, "none")] * 5 + [(1e6, "none"), (1e4, "none")]


def test_what_a_gemma2_file_leaves_out() -> None:
    c = read_gemma(config_of("gemma2", SETTINGS))
    assert (c.windows, c.attn_cap, c.logit_cap) == ((4096, None, 4096), 50.0, 30.0)


def test_what_a_granite_file_leaves_out() -> None:
    assert config_of("granite", SETTINGS)["attention_multiplier"] == 24**-0.5


@pytest.mark.parametrize(("architecture", "layers", "scalar"), [("gemma3", 26, 24), ("gemma3", 62, 16), ("gemma2", 42, 24), ("gemma2", 46, 16)])
def test_scores_are_scaled_by_the_head_size_but_in_the_27b_models(architecture: str, layers: int, scalar: int) -> None:
    config = config_of(architecture, {**SETTINGS, "block_count": layers})
    assert config["query_pre_attn_scalar"] == scalar and read_gemma(config).attn_scale == scalar**-0.5


def test_longrope_needs_both_lists_of_the_right_length() -> None:
    metadata = {"general.architecture": "phi3", **{f"phi3.{key}": value for key, value in {**SETTINGS, **PHI3}.items()}}
    tensors, eight = {"token_embd.weight": (512, 96)}, np.ones(8, np.float32)
    with pytest.raises(ModelError, match="m.gguf: tensor 'rope_factors_short.weight' is missing; the file has rope_factors_long.weight"):
        config_from_gguf(metadata, tensors, {"rope_factors_long.weight": eight}, "m.gguf")
    with pytest.raises(ModelError, match=r"m.gguf: rope_factors_long.weight has shape \[7\]: 8 positive numbers"):
        config_from_gguf(metadata, tensors, {"rope_factors_short.weight": eight, "rope_factors_long.weight": eight[:7]}, "m.gguf")

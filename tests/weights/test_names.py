"""Names and settings of GGUF files in Hugging Face terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from llmx.errors import ModelError
from llmx.weights.gguf_source import GgufSource
from llmx.weights.names import GGUF_ARCHITECTURES, canonical_name, rows_are_pairs

WriteGguf = Callable[..., Path]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_names_are_the_inverse_of_llama_cpp_converter(architecture: str) -> None:
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    table = gguf.get_tensor_name_map(kind, 4)
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
             "input_layernorm", "post_attention_layernorm"]  # fmt: skip
    if architecture == "qwen3":
        parts += ["self_attn.q_norm", "self_attn.k_norm"]
    names = [f"model.layers.{layer}.{part}.{end}" for layer in (0, 3) for part in parts for end in ("weight", "bias")]
    for name in [*names, "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]:
        stored = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None and canonical_name(stored) == name


def test_unknown_names_stay() -> None:
    for name in ("rope_freqs.weight", "blk.x.attn_q.weight", "blk.1.strange.weight", "v.patch_embd.weight", "blk", "output"):
        assert canonical_name(name) == name


def test_config_of_a_tiny_llama(write_gguf: WriteGguf) -> None:
    extra = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.padding_token_id": -1}
    config = GgufSource(str(write_gguf(extra=extra))).config
    assert config["architectures"] == ["LlamaForCausalLM"] and config["model_type"] == "llama"
    assert (config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (64, 4, 2, 16)
    assert (config["num_hidden_layers"], config["intermediate_size"], config["vocab_size"]) == (2, 96, 96)
    assert config["rms_norm_eps"] == pytest.approx(1e-5) and config["rope_theta"] == 10000.0 and "rope_scaling" not in config
    assert config["tie_word_embeddings"] is True and config["attention_bias"] is False
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [2, 5], None)


def test_rows_of_the_llama_family_are_pairs() -> None:
    assert {name for name in GGUF_ARCHITECTURES if rows_are_pairs(name)} == {"llama", "mistral", "granite", "smollm3"}


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        ({"llama.rope.scaling.type": "none"}, None),
    ],
)
def test_rope_scaling(write_gguf: WriteGguf, extra: dict[str, object], wanted: dict[str, object] | None) -> None:
    assert GgufSource(str(write_gguf(extra=extra))).config.get("rope_scaling") == wanted


def test_rope_factors_of_llama_3_become_divisors(write_gguf: WriteGguf, tiny_tensors: dict) -> None:
    factors = np.array([1, 1, 1.5, 2, 4, 8, 8, 8], np.float32)
    source = GgufSource(str(write_gguf(tensors=tiny_tensors | {"rope_freqs.weight": (factors, "f32")})))
    scaling = source.config["rope_scaling"]
    assert scaling["rope_type"] == "longrope" and scaling["short_factor"] == scaling["long_factor"] == factors.tolist()
    assert scaling["attention_factor"] == 1.0 and "rope_freqs.weight" not in set(source.names())


@pytest.mark.parametrize(
    ("extra", "drop", "reason"),
    [
        ({}, ("block_count",), "'llama.block_count' is missing"),
        ({"llama.block_count": 0}, (), "'llama.block_count' is 0"),
        ({"llama.attention.head_count": -1}, (), "'llama.attention.head_count' is -1"),
        ({"llama.attention.head_count": "four"}, (), "'llama.attention.head_count' is 'four'"),
        ({"llama.feed_forward_length": [96, 64]}, (), "'llama.feed_forward_length' is"),
        ({"llama.rope.scaling.type": "ntk"}, (), "rope scaling 'ntk'"),
    ],
)
def test_senseless_settings_are_refused(write_gguf: WriteGguf, extra: dict[str, object], drop: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        GgufSource(str(write_gguf(extra=extra, drop=drop)))


def test_unknown_architecture_names_the_nearest(write_gguf: WriteGguf) -> None:
    with pytest.raises(ModelError, match="'qwen3moe' is not supported.*nearest: qwen3"):
        GgufSource(str(write_gguf(architecture="qwen3moe")))

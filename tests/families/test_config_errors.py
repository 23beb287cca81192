"""A configuration that makes no sense is an error that names the field and its value; nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmx.config import ModelConfig
from llmx.errors import ModelError
from llmx.models.builtin import builtin_models
from llmx.models.load import read_model_info
from llmx.models.registry import TensorLayout
from llmx.program.ops import DENSE_BF16, Model
from llmx.program.verify import verify

BASE: Mapping[str, Any] = {
    "hidden_size": 96, "intermediate_size": 80, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 512,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_activation": "gelu_pytorch_tanh", "ffn_dim": 80, "n_embd": 64, "n_layer": 2,
    "n_head": 4, "n_positions": 64, "rotary_dim": 8, "head_dim": 16,
}  # fmt: skip
NEW_NAMES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "max_position_embeddings")  # a GPT configuration has older ones
YARN = {"rope_type": "yarn", "factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


def build(model_type: str, fields: Mapping[str, Any]) -> Model:
    config = {**BASE, "model_type": model_type, **fields}
    return builtin_models().find(config).build(config, lambda name: DENSE_BF16, TensorLayout())


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "granite", "smollm3", "gpt2", "gptj", "opt"]
)
def test_the_base_of_these_tests_is_right(model_type: str) -> None:
    verify(build(model_type, {}))


@pytest.mark.parametrize(
    ("model_type", "config_class", "without"),
    [
        ("llama", "LlamaConfig", ("num_key_value_heads", "rms_norm_eps", "head_dim")),
        ("mistral", "MistralConfig", ("sliding_window", "rms_norm_eps")),
        ("qwen2", "Qwen2Config", ("rms_norm_eps", "use_sliding_window", "max_window_layers", "head_dim")),
        ("qwen3", "Qwen3Config", ("head_dim", "rms_norm_eps", "use_sliding_window")),
        ("gemma2", "Gemma2Config", ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "layer_types", "head_dim")),
        ("gemma3_text", "Gemma3TextConfig", ("sliding_window", "query_pre_attn_scalar", "layer_types", "head_dim", "rope_parameters", "hidden_activation")),
        ("phi3", "Phi3Config", ("rms_norm_eps", "sliding_window", "head_dim")),
        ("olmo2", "Olmo2Config", ("rms_norm_eps", "head_dim")),
        ("granite", "GraniteConfig", ("rms_norm_eps", "attention_multiplier", "logits_scaling", "head_dim")),
        ("smollm3", "SmolLM3Config", ("rms_norm_eps", "no_rope_layers", "rope_parameters", "head_dim", "tie_word_embeddings")),
        ("gpt2", "GPT2Config", ("n_inner", "layer_norm_epsilon", "activation_function", "tie_word_embeddings", *NEW_NAMES)),
        ("gptj", "GPTJConfig", ("n_inner", "layer_norm_epsilon", "tie_word_embeddings", *NEW_NAMES)),
        ("opt", "OPTConfig", ("word_embed_proj_dim", "do_layer_norm_before", "tie_word_embeddings", "enable_bias")),
    ],
)
def test_an_absent_field_means_what_transformers_takes(model_type: str, config_class: str, without: tuple[str, ...]) -> None:
    """The Model of a file with these fields left out equals that of the file in which transformers has filled them in."""
    transformers = pytest.importorskip("transformers")
    written = {name: value for name, value in {**BASE, "model_type": model_type}.items() if name not in without}
    filled = getattr(transformers, config_class)(**written).to_dict()
    assert build_alone({**filled, "architectures": None}) == build_alone(written)


def test_gemma3_as_its_first_files_write_rope() -> None:
    """Base and scaling of the full layers under the old names, the base of the sliding ones beside them."""
    transformers = pytest.importorskip("transformers")
    old = {"rope_theta": 5e5, "rope_local_base_freq": 3e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 3}
    written = {**BASE, "model_type": "gemma3_text", **old}
    filled = transformers.Gemma3TextConfig(**written).to_dict()
    model = build_alone(written)
    assert model == build_alone({**filled, "architectures": None})
    ropes = [op.attrs.spec.rope for op in model.programs["main"].ops if op.kind == "qkv_prep"]
    entries = {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "linear", "factor": 8.0}}
    assert build_alone({**written, "rope_scaling": None, "rope_parameters": entries}) == model
    assert [(rope.theta, rope.scaling) for rope in ropes] == [(3e3, "none"), (3e3, "none"), (5e5, "linear")]


def build_alone(config: Mapping[str, Any]) -> Model:
    """The Model of exactly this configuration."""
    return builtin_models().find(config).build(config, lambda name: DENSE_BF16, TensorLayout())


ROPE = [
    ({"rope_type": "ntk", "factor": 2.0}, "rope type 'ntk' is not supported; supported: none, linear, dynamic, yarn, llama3, longrope"),
    ({"type": "linear", "rope_type": "yarn", "factor": 2.0}, "has 'rope_type' 'yarn' and 'type' 'linear': they contradict each other"),
    ({"rope_type": "linear"}, "rope type 'linear' needs 'factor'"),
    ({"rope_type": "linear", "factor": 0}, "'factor' is 0; a number above 0"),
    ({"rope_type": "linear", "factor": "4"}, "'factor' is '4'; a number above 0"),
    ({**YARN, "original_max_position_embeddings": 1.5}, "'original_max_position_embeddings' is 1.5; a whole number"),
    ({**YARN, "attention_factor": -1.0}, "'attention_factor' is -1.0; a number above 0"),
    ({**LLAMA3, "high_freq_factor": 1.0}, "has high_freq_factor 1.0, which must be above low_freq_factor 1.0"),
    ({**LONG, "long_factor": [2.0] * 7}, r"has long_factor \[2.0, .*; a list of 8 positive numbers \(half of the 16 rotary elements\)"),
    ({**LONG, "short_factor": [0.0] * 8}, "has short_factor .*; a list of 8 positive numbers"),
    ({**LONG, "short_factor": "1"}, "has short_factor '1'; a list of 8 positive numbers"),
    ({"rope_type": "default", "rope_theta": 0.0}, "'rope_theta' is 0.0; a number above 0"),
    ({"rope_type": "default", "rope_theta": float("inf")}, "'rope_theta' is inf; a number above 0"),
    ({"rope_type": "default", "partial_rotary_factor": 1.5}, "'partial_rotary_factor' is 1.5: 24 of the 16 elements"),
    ({"rope_type": "default", "partial_rotary_factor": 0.2}, "'partial_rotary_factor' is 0.2: 3 of the 16 elements of a head; an even number"),
    ({"full_attention": {"rope_type": "default"}}, r"has an entry per layer type \(full_attention\); this model reads one for all layers"),
    ("yarn", "is 'yarn'; a mapping is needed"),
]


@pytest.mark.parametrize(("rope", "why"), ROPE)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_rope(field: str, rope: Any, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        build("llama", {field: rope})


def test_both_ways_of_writing_rope_have_to_agree() -> None:
    verify(build("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}))
    with pytest.raises(ModelError, match="'rope_scaling' has 'factor' 2.0 and 'rope_parameters' has 4.0: they contradict each other"):
        build("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}})


@pytest.mark.parametrize(
    ("model_type", "fields", "why"),
    [
        ("llama", {"num_key_value_heads": 4}, r"'num_attention_heads' is 6; a multiple of num_key_value_heads \(4\)"),
        ("llama", {"hidden_size": 100, "head_dim": None}, r"'hidden_size' is 100; a multiple of num_attention_heads \(6\)"),
        ("llama", {"rms_norm_eps": 0.0}, "'rms_norm_eps' is 0.0; a number above 0"),
        ("mistral", {"sliding_window": 0}, "'sliding_window' is 0; a whole number of at least 1"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["linear_attention"] * 3},
            "'layer_types' has 'linear_attention'; known: full",
        ),
        ("gemma2", {"sliding_window": None, "layer_types": ["sliding_attention"] * 3}, "'sliding_window' is None; a whole number"),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, r"'layer_types' is .* a list of 3 entries \(num_hidden_layers\)"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "'attn_logit_softcapping' is 0.0; a number above 0"),
        ("gemma2", {"query_pre_attn_scalar": -1}, "'query_pre_attn_scalar' is -1; a number above 0"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0: Gemma 3 has no cap"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is True: only causal"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "'sliding_window_pattern' is 0; a whole number"),
        ("granite", {"logits_scaling": 0}, "'logits_scaling' is 0; a number above 0"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "'no_rope_layers' is .* a list of 3 entries"),
        ("smollm3", {"no_rope_layers": [1, 2, 0]}, r"'no_rope_layers' is \[1, 2, 0\]; 1 \(rope\) or 0 \(none\)"),
        ("gpt2", {"n_head": 3}, "fields 'n_embd' and 'n_head' are 64 and 3: the first must be a multiple"),
        ("gpt2", {"add_cross_attention": True}, "'add_cross_attention' is True: a decoder that reads an encoder"),
        ("gptj", {"rotary_dim": "8"}, "'rotary_dim' is '8'; a whole number"),
        ("gptj", {"rotary_dim": 18}, "'rotary_dim' is 18; an even number of at most 16"),
        ("opt", {"activation_function": "mish"}, "'activation_function' is 'mish'; known: gelu"),
    ],
)
def test_fields_of_families(model_type: str, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        build(model_type, fields)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "neither 'architectures' nor 'model_type'"),
        ({"architectures": ["LamaForCausalLM"]}, "architecture 'LamaForCausalLM' is not supported; nearest supported: LlamaForCausalLM"),
        ({"model_type": "gema2"}, "model_type 'gema2' is not supported; nearest supported: gemma2"),
        ({"model_type": "llama", "vocab_size": 512}, "'max_position_embeddings' is None"),
    ],
)
def test_the_file_is_named(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=f"^{tmp_path}.*{why}"):
        read_model_info(ModelConfig(str(tmp_path)))


@pytest.mark.parametrize(
    ("scaling", "length"), [({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128), ({"type": "linear", "factor": 8.0}, 64)]
)
def test_context_of_a_family_that_counts_scaling_already(scaling: dict[str, Any], length: int, tmp_path: Path) -> None:
    """yarn with factor 4: four times the original context. Gemma 3 writes the context that its scaling reaches."""
    header = json.dumps({"__metadata__": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    model_type = "gemma3_text" if scaling["type"] == "linear" else "qwen2"
    (tmp_path / "config.json").write_text(
        json.dumps({**BASE, "model_type": model_type, "rope_scaling": scaling, "max_position_embeddings": 64 if length == 64 else 32})
    )
    assert read_model_info(ModelConfig(str(tmp_path))).max_model_len == length

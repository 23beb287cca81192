"""Names and settings of GGUF files in Hugging Face terms, for the llama family.

Tensor names: llama.cpp's (gguf-py's constants.py) -> those of transformers. Settings: `<architecture>.*` metadata -> config.json.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from llmx.errors import ModelError

__all__ = ["GGUF_ARCHITECTURES", "canonical_name", "config_from_gguf", "rows_are_pairs"]

# GGUF architecture -> (model_type, class name, q and k rows lie as rotary pairs)
GGUF_ARCHITECTURES: Mapping[str, tuple[str, str, bool]] = {
    "llama": ("llama", "LlamaForCausalLM", True),  # Mistral, SmolLM and others are written as llama
    "mistral": ("mistral", "MistralForCausalLM", True),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", False),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", False),
}

_GLOBAL_NAMES: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# metadata key without its architecture -> config.json key
_SETTINGS: Mapping[str, str] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_TOKEN_IDS: Mapping[str, str] = {"bos": "bos_token_id", "padding": "pad_token_id"}
_END_IDS = ("eos", "eot", "eom")  # generation stops at any of them


def canonical_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name outside the table is given back as it is."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix not in ("weight", "bias"):
        return name
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    block, index, part = (*stem.split(".", 2), "", "")[:3]
    if block == "blk" and index.isdecimal() and part in _LAYER_NAMES:
        return f"model.layers.{int(index)}.{_LAYER_NAMES[part]}.{suffix}"
    return name


def rows_are_pairs(architecture: str) -> bool:
    """True when files of this GGUF architecture keep the rows of q and k as rotary pairs instead of halves."""
    return GGUF_ARCHITECTURES[architecture][2]


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], rope_factors: np.ndarray | None, path: str) -> dict[str, Any]:
    """A config.json-like dict: model_type, architectures, sizes, rope, tied head, special token ids.

    tensors: GGUF names -> shapes. rope_factors: float32 [head_dim / 2] divisors of the rotary frequencies (`rope_freqs.weight`).
    Raises ModelError naming the file for an unknown architecture, a missing or a senseless setting.
    """
    architecture = str(metadata.get("general.architecture"))
    if architecture not in GGUF_ARCHITECTURES:
        near = difflib.get_close_matches(architecture, GGUF_ARCHITECTURES, n=1, cutoff=0.0)[0]
        raise ModelError(f"architecture {architecture!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)} (nearest: {near})", path=path)
    model_type, class_name, _ = GGUF_ARCHITECTURES[architecture]
    settings = _Settings(metadata, architecture, path)
    config: dict[str, Any] = {"model_type": model_type, "architectures": [class_name]}
    for key, name in _SETTINGS.items():
        config[name] = settings.number(key, float if "epsilon" in key else int)
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = settings.number("attention.head_count_kv", int, heads)
    config["head_dim"] = settings.number("attention.key_length", int, config["hidden_size"] // heads)
    config["vocab_size"] = _vocab_size(tensors, path)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["hidden_act"] = "silu"
    window = settings.number("attention.sliding_window", int, 0)
    if window:
        config["sliding_window"] = window
        config["use_sliding_window"] = True
    config["rope_theta"] = settings.number("rope.freq_base", float, 10000.0)
    scaling = _rope_scaling(settings, config, rope_factors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    config.update(_token_ids(metadata, config["vocab_size"]))
    return config


def _rope_scaling(settings: _Settings, config: dict[str, Any], factors: np.ndarray | None) -> dict[str, Any] | None:
    context = config["max_position_embeddings"]
    original = settings.number("rope.scaling.original_context_length", int, context)
    if factors is not None:
        if factors.shape != (config["head_dim"] // 2,) or not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelError(f"rope_freqs.weight has shape {list(factors.shape)}: head_dim / 2 positive numbers are needed", path=settings.path)
        values = [float(factor) for factor in factors]
        # divided frequencies without a change of amplitude: longrope with equal factors says exactly that
        return {
            "rope_type": "longrope",
            "short_factor": values,
            "long_factor": values,
            "attention_factor": 1.0,
            "original_max_position_embeddings": original,
        }
    kind = settings.metadata.get(f"{settings.architecture}.rope.scaling.type", "none")
    old_linear = settings.number("rope.scale_linear", float, 1.0)
    if kind == "none":
        return {"rope_type": "linear", "factor": old_linear} if old_linear != 1.0 else None
    factor = settings.number("rope.scaling.factor", float, 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        attention = settings.number("rope.scaling.attn_factor", float, 1.0)  # multiplies yarn's usual amplitude
        return {**scaling, "attention_factor": attention * (0.1 * math.log(max(factor, 1.0)) + 1.0)} if attention != 1.0 else scaling
    raise ModelError(f"rope scaling {kind!r} is not supported; supported: none, linear, yarn", path=settings.path)


def _vocab_size(tensors: Mapping[str, tuple[int, ...]], path: str) -> int:
    if "token_embd.weight" not in tensors:
        raise ModelError("tensor 'token_embd.weight' is missing", path=path)
    return tensors["token_embd.weight"][0]


def _token_ids(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Special ids; ids outside the vocabulary (-1, or equal to its size, in some files) are left out."""

    def valid(kind: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size else None

    ids: dict[str, Any] = {name: valid(kind) for kind, name in _TOKEN_IDS.items()}
    ends: list[int] = []
    for kind in _END_IDS:
        value = valid(kind)
        if value is not None and value not in ends:
            ends.append(value)
    ids["eos_token_id"] = ends
    return ids


class _Settings:
    """Typed access to `<architecture>.*` metadata."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, path: str) -> None:
        self.metadata, self.architecture, self.path = metadata, architecture, path

    def number(self, key: str, kind: type[int] | type[float], default: Any = None) -> Any:
        """A number, finite and not negative; per-layer arrays only when all layers agree."""
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if value is None:
            raise ModelError(f"metadata {name!r} is missing", path=self.path)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 40 or (kind is int and value != int(value)):
            raise ModelError(f"metadata {name!r} is {value!r}: one {'whole ' if kind is int else ''}number, 0 or more, is needed", path=self.path)
        if value == 0 and default is None:
            raise ModelError(f"metadata {name!r} is 0", path=self.path)
        return kind(value)

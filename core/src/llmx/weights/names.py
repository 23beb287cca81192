"""Names and settings of GGUF files in Hugging Face terms, for the families that come as GGUF.

Tensor names: llama.cpp's (gguf-py's constants.py) -> those of transformers. Settings: `<architecture>.*` metadata -> config.json.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from llmx.errors import ModelError
from llmx.record import record

__all__ = ["GGUF_ARCHITECTURES", "GgufArchitecture", "canonical_name", "config_from_gguf", "norms_are_whole", "rows_are_pairs"]


@record
class GgufArchitecture:
    """What a value of general.architecture means. rope_pairs: rows of q and k lie as rotary pairs. norms_whole: the 1 of norms
    1 + weight is added already. layer_names: places that are called otherwise than in a llama file.
    """

    model_type: str
    class_name: str
    rope_pairs: bool = False
    norms_whole: bool = False
    layer_names: Mapping[str, str] = field(default_factory=dict)


_BOTH_SIDES: Mapping[str, str] = {  # norms before and behind
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "llama": GgufArchitecture("llama", "LlamaForCausalLM", rope_pairs=True),  # Mistral, SmolLM and others are written as llama
    "mistral": GgufArchitecture("mistral", "MistralForCausalLM", rope_pairs=True),
    "qwen2": GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": GgufArchitecture("qwen3", "Qwen3ForCausalLM"),
    "gemma2": GgufArchitecture("gemma2", "Gemma2ForCausalLM", norms_whole=True, layer_names=_BOTH_SIDES),
    "gemma3": GgufArchitecture("gemma3_text", "Gemma3ForCausalLM", norms_whole=True, layer_names=_BOTH_SIDES),
    "granite": GgufArchitecture("granite", "GraniteForCausalLM", rope_pairs=True),
    "olmo2": GgufArchitecture("olmo2", "Olmo2ForCausalLM", layer_names=_BOTH_SIDES),
    "phi3": GgufArchitecture("phi3", "Phi3ForCausalLM", layer_names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "smollm3": GgufArchitecture("smollm3", "SmolLM3ForCausalLM", rope_pairs=True),
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


def canonical_name(name: str, architecture: str = "llama") -> str:
    """The Hugging Face name of a tensor in a file of this GGUF architecture; a name outside the table is given back as it is."""
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix not in ("weight", "bias"):
        return name
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    block, index, part = (*stem.split(".", 2), "", "")[:3]
    own = GGUF_ARCHITECTURES[architecture].layer_names if architecture in GGUF_ARCHITECTURES else {}
    place = own.get(part, _LAYER_NAMES.get(part))
    if block == "blk" and index.isdecimal() and place is not None:
        return f"model.layers.{int(index)}.{place}.{suffix}"
    return name


def rows_are_pairs(architecture: str) -> bool:
    """True when files of this GGUF architecture keep the rows of q and k as rotary pairs instead of halves."""
    return GGUF_ARCHITECTURES[architecture].rope_pairs


def norms_are_whole(architecture: str) -> bool:
    """True when files of this GGUF architecture hold 1 + weight where the Hugging Face checkpoint holds the weight of a norm."""
    return GGUF_ARCHITECTURES[architecture].norms_whole


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], rope_factors: Mapping[str, np.ndarray], path: str) -> dict[str, Any]:
    """A config.json-like dict: model_type, architectures, sizes, rope, tied head, special token ids.

    tensors: GGUF names -> shapes. rope_factors: name -> float32 divisors of the rotary frequencies (`rope_freqs.weight`;
    `rope_factors_long.weight` and `rope_factors_short.weight`).
    Raises ModelError naming the file for an unknown architecture, a missing or a senseless setting.
    """
    architecture = str(metadata.get("general.architecture"))
    if architecture not in GGUF_ARCHITECTURES:
        near = difflib.get_close_matches(architecture, GGUF_ARCHITECTURES, n=1, cutoff=0.0)[0]
        raise ModelError(f"architecture {architecture!r} is not supported; supported: {', '.join(GGUF_ARCHITECTURES)} (nearest: {near})", path=path)
    stored_as = GGUF_ARCHITECTURES[architecture]
    settings = _Settings(metadata, architecture, path)
    config: dict[str, Any] = {"model_type": stored_as.model_type, "architectures": [stored_as.class_name]}
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
    config["sliding_window"], config["use_sliding_window"] = window or None, bool(window)
    config["rope_theta"] = settings.number("rope.freq_base", float, 1e6 if architecture == "gemma3" else 10000.0)
    if architecture in ("gemma2", "gemma3"):
        config.update(_gemma(settings, config))
    if architecture == "phi3":
        config["partial_rotary_factor"] = settings.number("rope.dimension_count", int, config["head_dim"]) / config["head_dim"]
    if architecture == "granite":
        config.update(_granite(settings, config))
    scaling = _rope_scaling(settings, config, rope_factors)
    if scaling is not None:
        config["rope_scaling"] = scaling
    config.update(_token_ids(metadata, config["vocab_size"]))
    return config


def _gemma(settings: _Settings, config: Mapping[str, Any]) -> dict[str, Any]:
    """What files leave to the reader: period of the full layers, base of the sliding ones, and the scale of the scores, which is
    that of the head size but for the 27B models (46 layers in Gemma 2, 62 in Gemma 3).
    """
    third = settings.architecture == "gemma3"
    wide = config["num_hidden_layers"] == (62 if third else 46)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if wide else config["head_dim"],
        "sliding_window": config["sliding_window"] or 4096,
        "sliding_window_pattern": settings.number("attention.sliding_window_pattern", int, 6 if third else 2),
        "rope_local_base_freq": settings.number("rope.freq_base_swa", float, 10000.0),
        "attn_logit_softcapping": settings.number("attn_logit_softcapping", float, 0.0 if third else 50.0) or None,
        "final_logit_softcapping": settings.number("final_logit_softcapping", float, 0.0 if third else 30.0) or None,
    }


def _granite(settings: _Settings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Factors under their own names; without one of the scores they are scaled by the head size."""
    return {
        "embedding_multiplier": settings.number("embedding_scale", float, 1.0),
        "attention_multiplier": settings.number("attention.scale", float, 0.0) or config["head_dim"] ** -0.5,
        "residual_multiplier": settings.number("residual_scale", float, 1.0),
        "logits_scaling": settings.number("logit_scale", float, 1.0),
    }


def _rope_scaling(settings: _Settings, config: dict[str, Any], factors: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    context = config["max_position_embeddings"]
    original = settings.number("rope.scaling.original_context_length", int, context)
    if factors:
        # divided frequencies without a change of amplitude: longrope with equal factors says exactly that
        both = ("rope_freqs.weight",) * 2 if "rope_freqs.weight" in factors else ("rope_factors_short.weight", "rope_factors_long.weight")
        short, long = (_divisors(name, factors, int(config["head_dim"] * config.get("partial_rotary_factor", 1.0)) // 2, settings.path) for name in both)
        amplitude = 1.0 if both[0] == both[1] else settings.number("rope.scaling.attn_factor", float, 0.0)
        scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "original_max_position_embeddings": original}
        return {**scaling, "attention_factor": amplitude} if amplitude else scaling
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


def _divisors(name: str, factors: Mapping[str, np.ndarray], count: int, path: str) -> list[float]:
    values = factors.get(name)
    if values is None:
        raise ModelError(f"tensor {name!r} is missing; the file has {', '.join(factors)}", path=path)
    if values.shape != (count,) or not (np.isfinite(values).all() and (values > 0).all()):
        raise ModelError(f"{name} has shape {list(values.shape)}: {count} positive numbers, half of the rotary elements, are needed", path=path)
    return [float(value) for value in values]


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
        if isinstance(value, memoryview) and len(set(value.tolist())) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 40 or (kind is int and value != int(value)):
            raise ModelError(f"metadata {name!r} is {value!r}: one {'whole ' if kind is int else ''}number, 0 or more, is needed", path=self.path)
        if value == 0 and default is None:
            raise ModelError(f"metadata {name!r} is 0", path=self.path)
        return kind(value)

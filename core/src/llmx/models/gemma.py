"""Gemma 2 and Gemma 3 (text): norms 1 + weight on both sides, scaled embedding, sliding layers between full ones.

Gemma 2 caps scores and logits. Gemma 3 norms every head of q and k and turns sliding layers by a base of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import IGNORED, DecoderConfig, build_decoder, layer_windows, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, ModelFacts, TensorLayout, facts_from
from llmx.models.rope import rope_spec
from llmx.program.attrs import RopeSpec
from llmx.program.builder import QuantOf
from llmx.program.ops import Model

__all__ = ["build_gemma", "gemma_models", "read_gemma"]

# what transformers takes where the file has no such field; a null is a value
_DEFAULTS: Mapping[str, Any] = {"head_dim": 256, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096}
_CAPS: Mapping[str, Any] = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # Gemma 2
_LOCAL_THETA, _GLOBAL_THETA = 10_000.0, 1_000_000.0  # of Gemma 3, where the configuration does not say


def read_gemma(config: Mapping[str, Any]) -> DecoderConfig:
    """From config.json; `model_type` says which of the two it is. Raises ModelError naming the field at fault."""
    third = config.get("model_type") != "gemma2"
    config = {**_DEFAULTS, **({} if third else _CAPS), **config}
    config["hidden_activation"] = config.get("hidden_activation") or "gelu_pytorch_tanh"
    f, shared = Fields(config), {**config, "rope_parameters": None, "rope_scaling": None} if third else config
    f.refuse("use_bidirectional_attention", True, "all", why="only causal attention is supported")
    if third:
        f.refuse("attn_logit_softcapping", f.get("attn_logit_softcapping"), why="Gemma 3 has no cap of its scores; null is needed")
    c = read_decoder(shared, "hidden_activation", tied=True)
    period = f.integer("sliding_window_pattern", 6 if third else 2)
    scale = f.number("query_pre_attn_scalar", 256.0, above=0.0)
    c = replace(
        c,
        windows=layer_windows(f, c.layers, lambda layer: (layer + 1) % period != 0),
        norms="sandwich",
        norm_offset=1.0,
        attn_scale=scale**-0.5,
        attn_cap=None if third else _cap(f, "attn_logit_softcapping"),
        logit_cap=_cap(f, "final_logit_softcapping"),
        embed_scale=c.hidden**0.5,
    )
    if not third:
        return c
    local, wide = _ropes(config, c.qkv.head_dim)
    ropes = tuple(wide if window is None else local for window in c.windows)
    return replace(c, qkv=replace(c.qkv, qk_norm="head", rope=wide), ropes=ropes)


def _cap(f: Fields, name: str) -> float | None:
    return None if f.get(name) is None else f.number(name, above=0.0)


def _ropes(config: Mapping[str, Any], head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Of sliding and of full layers. Older files write rope_theta and rope_scaling for the full ones and rope_local_base_freq."""
    base = Fields(config).number("rope_local_base_freq", _LOCAL_THETA, above=0.0)
    if config.get("rope_parameters"):
        local = rope_spec({**config, "rope_theta": None}, head_dim, layer_type="sliding_attention", theta=base)
        return local, rope_spec(config, head_dim, layer_type="full_attention", theta=_GLOBAL_THETA)
    return rope_spec({"rope_theta": base}, head_dim), rope_spec(config, head_dim, theta=_GLOBAL_THETA)


def _facts(config: Mapping[str, Any]) -> ModelFacts:
    """Gemma 3 writes the context that its rope scaling reaches."""
    return replace(facts_from(config), extended=True)


def build_gemma(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    return build_decoder(read_gemma(config), quant, layout, hidden)


def gemma_models() -> list[ModelDef]:
    """Definitions of the two architectures."""
    return [
        ModelDef("gemma2", ("Gemma2ForCausalLM",), ("gemma2",), build_gemma, facts_from, ("gemma2",), IGNORED),
        ModelDef("gemma3", ("Gemma3ForCausalLM",), ("gemma3_text",), build_gemma, _facts, ("gemma3",), IGNORED),
    ]

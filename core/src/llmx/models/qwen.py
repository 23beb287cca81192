"""Qwen2, Qwen2.5 and Qwen3: biases of q, k and v (2), or a norm of every head of q and k (3); the upper layers may slide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import IGNORED, DecoderConfig, build_decoder, layer_windows, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout, facts_from
from llmx.program.builder import QuantOf
from llmx.program.ops import Model

__all__ = ["build_qwen", "qwen_models", "read_qwen"]


def read_qwen(config: Mapping[str, Any]) -> DecoderConfig:
    """From config.json; `model_type` says which of the two it is."""
    third = config.get("model_type") == "qwen3"
    config = {"sliding_window": 4096, **({"head_dim": 128} if third else {}), **config}  # a null is a value
    f, c = Fields(config), read_decoder(config)
    if third:
        c = replace(c, qkv=replace(c.qkv, qk_norm="head"))
    else:
        c = replace(c, qkv_bias=True, o_bias=False)
    if not f.flag("use_sliding_window") or f.get("sliding_window") is None:
        return c
    first = f.integer("max_window_layers", 28, low=0)
    return replace(c, windows=layer_windows(f, c.layers, lambda layer: layer >= first))


def build_qwen(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    return build_decoder(read_qwen(config), quant, layout, hidden)


def qwen_models() -> list[ModelDef]:
    """Definitions of the two architectures."""
    return [
        ModelDef("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), build_qwen, facts_from, ("qwen2",), IGNORED),
        ModelDef("qwen3", ("Qwen3ForCausalLM",), ("qwen3",), build_qwen, facts_from, ("qwen3",), IGNORED),
    ]

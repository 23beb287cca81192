"""Phi-3, Phi-3.5 and Phi-4 (mini): q, k and v in one tensor, gate and up in another; part of each head may turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import IGNORED, DecoderConfig, build_decoder, layer_windows, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout, facts_from
from llmx.program.builder import QuantOf
from llmx.program.ops import Model

__all__ = ["build_phi3", "phi3_models", "read_phi3"]

_RENAMED = {"su": "longrope", "yarn": "longrope"}  # first names of longrope in this family's files


def read_phi3(config: Mapping[str, Any]) -> DecoderConfig:
    """From config.json. Raises ModelError naming the field at fault."""
    config = {"rms_norm_eps": 1e-5, **config}
    f = Fields(config)
    for field in ("rope_scaling", "rope_parameters"):
        rope = f.get(field)
        if isinstance(rope, Mapping):
            config = {**config, field: {name: _RENAMED.get(value, value) if name in ("type", "rope_type") else value for name, value in rope.items()}}
    c = replace(read_decoder(config), fused=True, qkv_bias=False, o_bias=False, mlp_bias=False)
    if f.get("sliding_window") is None:
        return c
    return replace(c, windows=layer_windows(f, c.layers, lambda layer: True))


def build_phi3(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    return build_decoder(read_phi3(config), quant, layout, hidden)


def phi3_models() -> list[ModelDef]:
    """The definition of the architecture."""
    return [ModelDef("phi3", ("Phi3ForCausalLM",), ("phi3",), build_phi3, facts_from, ("phi3",), IGNORED)]

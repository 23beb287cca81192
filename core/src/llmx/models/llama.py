"""Llama 1 to 3, Mistral, SmolLM and SmolLM2: the plain decoder. The file to copy for a family of the same kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import IGNORED, DecoderConfig, build_decoder, layer_windows, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout, facts_from
from llmx.program.builder import QuantOf
from llmx.program.ops import Model

__all__ = ["build_llama", "llama_models", "read_llama"]

_MISTRAL: Mapping[str, Any] = {"num_key_value_heads": 8, "sliding_window": 4096}  # where the file has no such field; a null is a value


def read_llama(config: Mapping[str, Any]) -> DecoderConfig:
    """From config.json. Mistral slides in every layer; Llama has no window, whatever its configuration says."""
    if config.get("model_type", "llama") == "llama":
        return read_decoder(config)
    config = {**_MISTRAL, **config}
    f, c = Fields(config), read_decoder(config)
    if f.get("sliding_window") is None:
        return c
    return replace(c, windows=layer_windows(f, c.layers, lambda layer: True))


def build_llama(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    return build_decoder(read_llama(config), quant, layout, hidden)


def llama_models() -> list[ModelDef]:
    """Definitions of the family's architectures."""
    return [
        ModelDef("llama", ("LlamaForCausalLM",), ("llama",), build_llama, facts_from, ("llama",), IGNORED),
        ModelDef("mistral", ("MistralForCausalLM",), ("mistral",), build_llama, facts_from, ("mistral",), IGNORED),
    ]

"""SmolLM3: the plain decoder in which some layers, every fourth by default, do not turn q and k."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.errors import ModelError
from llmx.models.decoder import IGNORED, DecoderConfig, build_decoder, layer_windows, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout, facts_from
from llmx.models.rope import rope_spec
from llmx.program.builder import QuantOf
from llmx.program.ops import Model

__all__ = ["build_smollm3", "read_smollm3", "smollm3_models"]

_THETA = 2_000_000.0  # where the configuration does not say


def read_smollm3(config: Mapping[str, Any]) -> DecoderConfig:
    """From config.json. no_rope_layers has 1 for a layer that turns, 0 for one that does not."""
    config = {"num_key_value_heads": 4, **config}  # where the file has no such field; a null is a value
    f, c = Fields(config), read_decoder(config, tied=True)
    rope, interval = rope_spec(config, c.qkv.head_dim, theta=_THETA), f.integer("no_rope_layer_interval", 4)
    turns = f.per_layer("no_rope_layers", c.layers) or [int((i + 1) % interval != 0) for i in range(c.layers)]
    if any(turn not in (0, 1) for turn in turns):
        raise ModelError(f"config field 'no_rope_layers' is {turns!r}; 1 (rope) or 0 (none) for each layer is needed")
    c = replace(c, qkv=replace(c.qkv, rope=rope), ropes=tuple(rope if turns[i] else None for i in range(c.layers)))
    if not f.flag("use_sliding_window") or f.get("sliding_window") is None:
        return c
    return replace(c, windows=layer_windows(f, c.layers, lambda layer: not turns[layer]))


def build_smollm3(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    return build_decoder(read_smollm3(config), quant, layout, hidden)


def smollm3_models() -> list[ModelDef]:
    """The definition of the architecture."""
    return [ModelDef("smollm3", ("SmolLM3ForCausalLM",), ("smollm3",), build_smollm3, facts_from, ("smollm3",), IGNORED)]

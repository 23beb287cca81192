"""Granite 3: the plain decoder with factors of the embedding, the scores, what a layer adds, and the logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import IGNORED, build_decoder, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout, facts_from
from llmx.program.builder import QuantOf
from llmx.program.ops import Model

__all__ = ["build_granite", "granite_models"]


def build_granite(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    f = Fields(config)
    c = replace(
        read_decoder(config),
        embed_scale=f.number("embedding_multiplier", 1.0),
        attn_scale=f.number("attention_multiplier", 1.0),
        residual_scale=f.number("residual_multiplier", 1.0),
        logit_scale=1.0 / f.number("logits_scaling", 1.0, above=0.0),
    )
    return build_decoder(c, quant, layout, hidden)


def granite_models() -> list[ModelDef]:
    """The definition of the architecture."""
    return [ModelDef("granite", ("GraniteForCausalLM",), ("granite",), build_granite, facts_from, ("granite",), IGNORED)]

"""OLMo 2: norms behind attention and MLP instead of before, q and k normed over their full width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import IGNORED, build_decoder, read_decoder
from llmx.models.registry import ModelDef, TensorLayout, facts_from
from llmx.program.builder import QuantOf
from llmx.program.ops import Model

__all__ = ["build_olmo2", "olmo2_models"]


def build_olmo2(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    c = read_decoder({"rms_norm_eps": 1e-5, **config})
    return build_decoder(replace(c, norms="post", qkv=replace(c.qkv, qk_norm="full"), mlp_bias=False), quant, layout, hidden)


def olmo2_models() -> list[ModelDef]:
    """The definition of the architecture."""
    return [ModelDef("olmo2", ("Olmo2ForCausalLM",), ("olmo2",), build_olmo2, facts_from, ("olmo2",), IGNORED)]

"""OLMo-2: norms after attention and MLP instead of before, q and k normalised over their full width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.llama import LlamaConfig, attention_block, lm_head, mlp_block
from llmx.models.registry import TensorLayout
from llmx.program.builder import ModelBuilder, QuantOf, R
from llmx.program.ops import Model


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of an Olmo2Config."""
    c, model = LlamaConfig.read(config), ModelBuilder(quant)
    c = replace(c, qkv=replace(c.qkv, qk_norm="full"))
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.embed_tokens", c.vocab, c.hidden)
    for i in range(c.layers):
        name = f"model.layers.{i}"
        with b.region("layer", i, "attn"):
            o = attention_block(b, x, positions, c, i, f"{name}.self_attn", TensorLayout())
            x = b.add(x, b.norm(o, f"{name}.post_attention_layernorm", c.eps))
        with b.region("layer", i, "mlp"):
            y = mlp_block(b, x, c.ffn, c.act, f"{name}.mlp")
            x = b.add(x, b.norm(y, f"{name}.post_feedforward_layernorm", c.eps))
    b.output("logits", b.linear(b.rows(b.norm(x, "model.norm", c.eps), head), lm_head(c.vocab, c.tied)))
    return model.build()

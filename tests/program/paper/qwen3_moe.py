"""Qwen3-MoE: Qwen3 with routed experts in the sparse layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import attention_block, lm_head, mlp_block, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import TensorLayout
from llmx.program.attrs import MoeSpec
from llmx.program.builder import ModelBuilder, QuantOf, R
from llmx.program.ops import Model


def moe_spec(f: Fields) -> MoeSpec:
    """Softmax over all experts, then the best k."""
    ffn, experts = f.integer("moe_intermediate_size"), f.integer("num_experts", f.get("num_local_experts"))
    return MoeSpec(experts, f.integer("num_experts_per_tok"), normalize=f.flag("norm_topk_prob"), ffn=ffn)


def is_sparse(f: Fields, layer: int) -> bool:
    """True when this layer has experts."""
    return layer not in f.get("mlp_only_layers", []) and (layer + 1) % f.integer("decoder_sparse_step", 1) == 0


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a Qwen3MoeConfig."""
    f, c, model = Fields(config), read_decoder(config), ModelBuilder(quant)
    c, moe = replace(c, qkv=replace(c.qkv, qk_norm="head")), moe_spec(f)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.embed_tokens", c.vocab, c.hidden)
    for i in range(c.layers):
        name = f"model.layers.{i}"
        with b.region("layer", i, "attn"):
            h = b.norm(x, f"{name}.input_layernorm", c.eps)
            x = b.add(x, attention_block(b, h, positions, c, i, f"{name}.self_attn", TensorLayout()))
        with b.region("layer", i, "mlp"):
            h = b.norm(x, f"{name}.post_attention_layernorm", c.eps)
            sparse = is_sparse(f, i)
            x = b.add(x, b.moe(h, moe, f"{name}.mlp.gate", f"{name}.mlp.experts") if sparse else mlp_block(b, h, c.ffn, c.act, f"{name}.mlp"))
    b.output("logits", b.linear(b.rows(b.norm(x, "model.norm", c.eps), head), lm_head(c.vocab, c.tied)))
    return model.build()

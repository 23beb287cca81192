"""BERT and its pooler: bidirectional, norms after each sum, one row per request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.models.decoder import ACTIVATIONS
from llmx.models.fields import Fields
from llmx.program.attrs import AttnSpec, PoolAttrs, QkvSpec
from llmx.program.builder import ModelBuilder, QuantOf, T, part
from llmx.program.ops import Model


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a BertConfig: programs main (rows) and pool. Prompts are never chunked, so no State is kept."""
    f, model = Fields(config), ModelBuilder(quant)
    width, heads, eps, act = f.integer("hidden_size"), f.integer("num_attention_heads"), f.number("layer_norm_eps"), f.choice("hidden_act", ACTIVATIONS)
    d, b = width // heads, model.program("main")
    ids, positions, types = b.input("ids"), b.input("positions"), b.input("token_types")
    x = b.add(
        b.embed(ids, "embeddings.word_embeddings", f.integer("vocab_size"), width),
        b.embed(types, "embeddings.token_type_embeddings", f.integer("type_vocab_size"), width),
    )
    x = b.add(x, b.pos_embed(positions, "embeddings.position_embeddings.weight", f.integer("max_position_embeddings"), width))
    x = b.norm(x, "embeddings.LayerNorm", eps, "layer", bias=True)
    for i in range(f.integer("num_hidden_layers")):
        name = f"encoder.layer.{i}"
        with b.region("layer", i, "attn"):
            parts = (part(f"{name}.attention.self.{p}", width, "heads" if p == "query" else "kv_heads", bias=True) for p in ("query", "key", "value"))
            q, k, v = b.qkv_prep(b.linear(x, *parts), QkvSpec(heads, heads, d, d))
            o = b.attention(None, q, k, v, spec=AttnSpec(heads, heads, d, d, d**-0.5, "bidirectional"))
            o = b.linear(o, part(f"{name}.attention.output.dense", width, "heads", bias=True))
            x = b.norm(b.add(x, o), f"{name}.attention.output.LayerNorm", eps, "layer", bias=True)
        with b.region("layer", i, "mlp"):
            m = b.act(b.linear(x, part(f"{name}.intermediate.dense", f.integer("intermediate_size"), "ffn", bias=True)), act)
            m = b.linear(m, part(f"{name}.output.dense", width, "ffn", bias=True))
            x = b.norm(b.add(x, m), f"{name}.output.LayerNorm", eps, "layer", bias=True)
    b.output("hidden", x)

    b = model.program("pool")
    first = b.emit1("pool", b.input("hidden", (T, width), "act"), attrs=PoolAttrs("cls"))
    b.output("pooled", b.act(b.linear(first, part("pooler.dense", width, bias=True)), "tanh"))
    return model.build()

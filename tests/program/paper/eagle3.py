"""EAGLE-3 on Llama: the target names three hidden rows, a one-layer drafter reads them and the token's embedding.

The drafter's tensors carry the prefix "draft." before their names in its own checkpoint; the embedding is the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import attention_block, decoder, lm_head, mlp_block, read_decoder
from llmx.models.fields import Fields
from llmx.models.registry import TensorLayout
from llmx.program.builder import ModelBuilder, QuantOf, R, T, part
from llmx.program.ops import Model


def build(config: Mapping[str, Any], draft: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """Target and drafter: programs main, draft.fuse (three rows -> one, once per accepted token) and draft (one draft token)."""
    target, c, model, layout = read_decoder(config), read_decoder(draft), ModelBuilder(quant), TensorLayout()
    taken = (2, target.layers // 2, target.layers - 3)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = decoder(b, b.embed(ids, "model.embed_tokens", target.vocab, target.hidden), positions, target, layout, hidden=taken)
    b.output("logits", b.linear(b.rows(x, head), lm_head(target.vocab, target.tied)))

    b = model.program("draft.fuse")
    rows = [b.input(f"hidden.{i}", (T, target.hidden), "act") for i in taken]
    b.output("hidden", b.linear(b.concat(*rows), part("draft.fc", c.hidden)))

    b = model.program("draft")
    ids, positions, head, hidden = b.input("ids"), b.input("positions"), b.input("head", (R,)), b.input("hidden", (T, c.hidden), "act")
    embeds = b.embed(ids, "model.embed_tokens", target.vocab, target.hidden)
    name, small = "draft.midlayer", Fields(draft).integer("draft_vocab_size")
    c = replace(c, windows=(None,))
    with b.region("draft", 0, "attn"):
        h = b.concat(b.norm(embeds, f"{name}.input_layernorm", c.eps), b.norm(hidden, f"{name}.hidden_norm", c.eps))
        x = b.add(hidden, attention_block(b, h, positions, c, 0, f"{name}.self_attn", layout, "draft.0.attn"))
    with b.region("draft", 0, "mlp"):
        h = b.norm(x, f"{name}.post_attention_layernorm", c.eps)
        x = b.add(x, mlp_block(b, h, c.ffn, c.act, f"{name}.mlp"))
    b.output("hidden", x)
    logits = b.linear(b.rows(b.norm(x, "draft.norm", c.eps), head), part("draft.lm_head", small, "vocab"))
    b.output("logits", logits, ids=b.tensor("draft.d2t", small))
    return model.build()

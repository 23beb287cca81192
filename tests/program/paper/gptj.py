"""GPT-J: attention and MLP read the same normed row and are added together; rope in pairs on part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.fields import Fields
from llmx.models.llama import ACTIVATIONS
from llmx.program.attrs import AttnSpec, QkvSpec, RopeSpec
from llmx.program.builder import ModelBuilder, QuantOf, R, part
from llmx.program.ops import Model


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a GPTJConfig."""
    f, model = Fields(config), ModelBuilder(quant)
    width, heads, vocab, eps = f.integer("n_embd"), f.integer("n_head"), f.integer("vocab_size"), f.number("layer_norm_epsilon")
    d, ffn, act = width // heads, f.integer("n_inner", 4 * width), f.choice("activation_function", ACTIVATIONS)
    spec = QkvSpec(heads, heads, d, d, rope=RopeSpec("gptj", f.integer("rotary_dim", d), 10000.0))
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "transformer.wte", vocab, width)
    for i in range(f.integer("n_layer")):
        name = f"transformer.h.{i}"
        with b.region("layer", i):
            h = b.norm(x, f"{name}.ln_1", eps, "layer", bias=True)
            parts = (part(f"{name}.attn.{p}_proj", width, "heads" if p == "q" else "kv_heads") for p in "qkv")
            q, k, v = b.qkv_prep(b.linear(h, *parts), spec, positions)
            state = b.state(f"layers.{i}.attn", KVSpec("full", heads, d, d))
            b.kv_write(state, k, v)
            o = b.linear(b.attention(state, q, k, v, spec=AttnSpec(heads, heads, d, d, d**-0.5)), part(f"{name}.attn.out_proj", width, "heads"))
            m = b.act(b.linear(h, part(f"{name}.mlp.fc_in", ffn, "ffn", bias=True)), act)
            m = b.linear(m, part(f"{name}.mlp.fc_out", width, "ffn", bias=True))
            x = b.add(b.add(o, m), x)
    x = b.norm(x, "transformer.ln_f", eps, "layer", bias=True)
    b.output("logits", b.linear(b.rows(x, head), part("lm_head", vocab, "vocab", bias=True)))
    return model.build()

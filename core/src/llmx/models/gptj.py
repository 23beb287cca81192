"""GPT-J: attention and MLP read the same normed row and are added together; rope in pairs on part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.errors import ModelError
from llmx.models.classic import gpt_facts, head_size, mlp, multi_head
from llmx.models.decoder import ACTIVATIONS
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout
from llmx.program.attrs import RopeSpec
from llmx.program.builder import ModelBuilder, QuantOf, R, part
from llmx.program.ops import Model

__all__ = ["build_gptj", "gptj_models"]


def build_gptj(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    f, model = Fields(config), ModelBuilder(quant)
    width, heads, vocab, eps = f.integer("n_embd"), f.integer("n_head"), f.integer("vocab_size"), f.number("layer_norm_epsilon", 1e-5, above=0.0)
    d, ffn, act = head_size(width, heads, "'n_embd' and 'n_head'"), f.integer("n_inner", 4 * width), f.choice("activation_function", ACTIVATIONS, "gelu_new")
    rotary_dim, tied = f.integer("rotary_dim", d), f.flag("tie_word_embeddings")
    if rotary_dim > d or rotary_dim % 2:
        raise ModelError(f"config field 'rotary_dim' is {rotary_dim}; an even number of at most {d}, the head size, is needed")
    rope = RopeSpec("gptj", rotary_dim, 10000.0)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "transformer.wte", vocab, width)
    for i in range(f.integer("n_layer")):
        name = f"transformer.h.{i}"
        with b.region("layer", i):
            h = b.norm(x, f"{name}.ln_1", eps, "layer", bias=True)
            qkv = b.linear(h, *(part(f"{name}.attn.{p}_proj", width, "heads" if p == "q" else "kv_heads") for p in "qkv"))
            o = b.linear(multi_head(b, qkv, positions, i, heads, d, rope=rope), part(f"{name}.attn.out_proj", width, "heads"))
            m = mlp(b, h, act, part(f"{name}.mlp.fc_in", ffn, "ffn", bias=True), part(f"{name}.mlp.fc_out", width, "ffn", bias=True))
            x = b.add(b.add(o, m), x)
    x = b.rows(b.norm(x, "transformer.ln_f", eps, "layer", bias=True), head)
    b.output("logits", b.linear(x, part("lm_head", vocab, "vocab", bias=True, weight="transformer.wte.weight" if tied else None)))
    return model.build()


def gptj_models() -> list[ModelDef]:
    """The definition of the architecture. Older files carry causal masks as tensors."""
    return [ModelDef("gptj", ("GPTJForCausalLM",), ("gptj",), build_gptj, gpt_facts, (), (".attn.bias", ".attn.masked_bias"))]

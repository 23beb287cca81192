"""GPT-2: learned positions, layer norms, biases everywhere; matrices are stored input by output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.models.classic import gpt_facts, head_size, mlp, multi_head
from llmx.models.decoder import ACTIVATIONS
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout
from llmx.program.builder import ModelBuilder, PartDef, QuantOf, R, part
from llmx.program.ops import Model, Split, Transform

__all__ = ["build_gpt2", "gpt2_models"]

_TURN = Transform("transpose")
_OUTER = "transformer."


def _part(target: str, rows: int, split: Split) -> PartDef:
    """A part over a matrix that is stored transposed."""
    return part(target, rows, split, bias=True, transforms=(_TURN,))


def _third(target: str, rows: int, index: int) -> PartDef:
    """q, k or v: a third of the columns of one stored matrix."""
    cut = Transform("slice_rows", (index * rows, (index + 1) * rows))
    split: Split = "kv_heads" if index else "heads"
    return part(f"{target}.{'qkv'[index]}", rows, split, bias=f"{target}.bias", weight=f"{target}.weight", transforms=(_TURN, cut))


def build_gpt2(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    f, model = Fields(config), ModelBuilder(quant)
    f.refuse("add_cross_attention", True, why="a decoder that reads an encoder is not supported")
    width, heads, vocab, eps = f.integer("n_embd"), f.integer("n_head"), f.integer("vocab_size"), f.number("layer_norm_epsilon", 1e-5, above=0.0)
    d, ffn, act = head_size(width, heads, "'n_embd' and 'n_head'"), f.integer("n_inner", 4 * width), f.choice("activation_function", ACTIVATIONS, "gelu_new")
    base, by_layer = d**-0.5 if f.flag("scale_attn_weights", True) else 1.0, f.flag("scale_attn_by_inverse_layer_idx")
    outer = "" if layout is not None and layout.bare else _OUTER
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.add(b.embed(ids, f"{outer}wte", vocab, width), b.pos_embed(positions, f"{outer}wpe.weight", f.integer("n_positions"), width))
    for i in range(f.integer("n_layer")):
        name = f"{outer}h.{i}"
        with b.region("layer", i, "attn"):
            h = b.norm(x, f"{name}.ln_1", eps, "layer", bias=True)
            qkv = b.linear(h, *(_third(f"{name}.attn.c_attn", width, j) for j in range(3)))
            o = multi_head(b, qkv, positions, i, heads, d, base / (i + 1) if by_layer else base)
            x = b.add(x, b.linear(o, _part(f"{name}.attn.c_proj", width, "heads")))
        with b.region("layer", i, "mlp"):
            h = b.norm(x, f"{name}.ln_2", eps, "layer", bias=True)
            x = b.add(x, mlp(b, h, act, _part(f"{name}.mlp.c_fc", ffn, "ffn"), _part(f"{name}.mlp.c_proj", width, "ffn")))
    x = b.rows(b.norm(x, f"{outer}ln_f", eps, "layer", bias=True), head)
    tied = f.flag("tie_word_embeddings", True)
    b.output("logits", b.linear(x, part("lm_head", vocab, "vocab", weight=f"{outer}wte.weight" if tied else None)))
    return model.build()


def gpt2_models() -> list[ModelDef]:
    """The definition of the architecture. Older files carry causal masks as tensors."""
    return [ModelDef("gpt2", ("GPT2LMHeadModel",), ("gpt2",), build_gpt2, gpt_facts, (), (".attn.bias", ".attn.masked_bias"), _OUTER)]

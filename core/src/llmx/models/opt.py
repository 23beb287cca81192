"""OPT: learned positions from row 2 on, layer norms before (or, in the 350M model, behind) attention and MLP, relu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.models.classic import head_size, mlp, multi_head
from llmx.models.decoder import ACTIVATIONS
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, TensorLayout, facts_from
from llmx.program.builder import ModelBuilder, ProgramBuilder, QuantOf, R, part
from llmx.program.ops import Model, Value

__all__ = ["build_opt", "opt_models"]

_EPS = 1e-5  # no field says it
_FIRST_ROW = 2  # of the table of positions


def _layers(b: ProgramBuilder, x: Value, positions: Value, f: Fields, width: int) -> Value:
    """All layers. The norm of each half stands before it or behind its sum."""
    heads, bias, affine = f.integer("num_attention_heads"), f.flag("enable_bias", True), f.flag("layer_norm_elementwise_affine", True)
    d, ffn, act = head_size(width, heads, "'hidden_size' and 'num_attention_heads'"), f.integer("ffn_dim"), f.choice("activation_function", ACTIVATIONS, "relu")
    before = f.flag("do_layer_norm_before", True)

    def norm(y: Value, name: str) -> Value:
        return b.norm(y, name if affine else None, _EPS, "layer", bias=affine)

    for i in range(f.integer("num_hidden_layers")):
        name = f"model.decoder.layers.{i}"
        attn, out = f"{name}.self_attn", f"{name}.final_layer_norm"
        with b.region("layer", i, "attn"):
            h = norm(x, f"{attn}_layer_norm") if before else x
            qkv = b.linear(h, *(part(f"{attn}.{p}_proj", width, "heads" if p == "q" else "kv_heads", bias=bias) for p in "qkv"))
            x = b.add(x, b.linear(multi_head(b, qkv, positions, i, heads, d), part(f"{attn}.out_proj", width, "heads", bias=bias)))
            x = x if before else norm(x, f"{attn}_layer_norm")
        with b.region("layer", i, "mlp"):
            h = norm(x, out) if before else x
            x = b.add(x, mlp(b, h, act, part(f"{name}.fc1", ffn, "ffn", bias=bias), part(f"{name}.fc2", width, "ffn", bias=bias)))
            x = x if before else norm(x, out)
    if before and not f.flag("_remove_final_layer_norm"):
        x = norm(x, "model.decoder.final_layer_norm")
    return x


def build_opt(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    f, model = Fields(config), ModelBuilder(quant)
    width, vocab = f.integer("hidden_size"), f.integer("vocab_size")
    narrow = f.integer("word_embed_proj_dim", width)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.decoder.embed_tokens", vocab, narrow)
    x = x if narrow == width else b.linear(x, part("model.decoder.project_in", width))
    rows = f.integer("max_position_embeddings") + _FIRST_ROW
    x = b.add(x, b.pos_embed(positions, "model.decoder.embed_positions.weight", rows, width, _FIRST_ROW))
    x = b.rows(_layers(b, x, positions, f, width), head)
    x = x if narrow == width else b.linear(x, part("model.decoder.project_out", narrow))
    tied = f.flag("tie_word_embeddings", True)
    b.output("logits", b.linear(x, part("lm_head", vocab, "vocab", weight="model.decoder.embed_tokens.weight" if tied else None)))
    return model.build()


def opt_models() -> list[ModelDef]:
    """The definition of the architecture."""
    return [ModelDef("opt", ("OPTForCausalLM",), ("opt",), build_opt, facts_from)]

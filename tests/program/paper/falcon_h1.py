"""Falcon-H1: a Mamba-2 mixer and attention side by side in each layer, and a multiplier on almost everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.decoder import DecoderConfig, lm_head, read_decoder
from llmx.models.fields import Fields
from llmx.program.attrs import AttnSpec, RecurrentSpec
from llmx.program.builder import ModelBuilder, ProgramBuilder, QuantOf, R, part
from llmx.program.ops import Model, Value


def mamba(b: ProgramBuilder, h: Value, f: Fields, hidden: int, layer: int) -> Value:
    """in_proj -> z, x, B, C, dt, each scaled; scan; gate; out_proj."""
    name, heads, head_dim = f"model.layers.{layer}.mamba", f.integer("mamba_n_heads"), f.integer("mamba_d_head")
    groups, state, conv = f.integer("mamba_n_groups"), f.integer("mamba_d_state"), f.integer("mamba_d_conv")
    inner, eps, bias = heads * head_dim, f.number("rms_norm_eps"), f.flag("mamba_proj_bias")
    sizes = (inner, inner, groups * state, groups * state, heads)
    projected = b.linear(b.scale(h, f.number("ssm_in_multiplier")), part(f"{name}.in_proj", sum(sizes), bias=bias))
    z, x, b_in, c_in, dt = (b.scale(piece, m) for piece, m in zip(b.split(projected, *sizes), f.get("ssm_multipliers"), strict=True))
    dims = {"conv": conv, "groups": groups, "head_dim": head_dim, "heads": heads, "state": state}
    limits = tuple(float(limit) for limit in f.get("time_step_limit", (0.0, float("inf"))))
    spec, wide = RecurrentSpec("mamba2", tuple(sorted(dims.items())), limits=limits), inner + 2 * groups * state
    weights = {
        "conv": b.tensor(f"{name}.conv1d.weight", wide, 1, conv, bias=f"{name}.conv1d.bias" if f.flag("mamba_conv_bias", True) else None),
        "a_log": b.tensor(f"{name}.A_log", heads),
        "d": b.tensor(f"{name}.D", heads),
        "dt_bias": b.tensor(f"{name}.dt_bias", heads),
    }
    y = b.recurrent(f"layers.{layer}.mamba", spec, b.concat(x, b_in, c_in), dt, weights=weights)
    if f.flag("mamba_rms_norm"):
        y = b.norm(y, f"{name}.norm", eps, gate=z, groups=groups, gate_after=f.flag("mamba_norm_before_gate", True))
    else:
        y = b.mul(y, b.act(z, "silu"))
    return b.linear(y, part(f"{name}.out_proj", hidden, bias=f.flag("projectors_bias")))


def attention(b: ProgramBuilder, h: Value, positions: Value, c: DecoderConfig, f: Fields, layer: int) -> Value:
    """Attention whose keys are scaled: softmax(s q (m k)) = softmax((s m) q k), so the multiplier is in the scale."""
    s, name = c.qkv, f"model.layers.{layer}.self_attn"
    rows = (("q_proj", s.q_heads, "heads"), ("k_proj", s.kv_heads, "kv_heads"), ("v_proj", s.kv_heads, "kv_heads"))
    qkv = b.linear(h, *(part(f"{name}.{p}", n * s.head_dim, split, bias=c.qkv_bias) for p, n, split in rows))
    q, k, v = b.qkv_prep(qkv, s, positions)
    state = b.state(f"layers.{layer}.attn", KVSpec("full", s.kv_heads, s.head_dim, s.v_head_dim))
    b.kv_write(state, k, v)
    spec = AttnSpec(s.q_heads, s.kv_heads, s.head_dim, s.v_head_dim, s.head_dim**-0.5 * f.number("key_multiplier"))
    return b.linear(b.attention(state, q, k, v, spec=spec), part(f"{name}.o_proj", c.hidden, "heads", bias=c.o_bias))


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a FalconH1Config."""
    f, c, model = Fields(config), replace(read_decoder(config), windows=(None,) * config["num_hidden_layers"]), ModelBuilder(quant)
    gate_scale, down_scale = f.get("mlp_multipliers")
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.embed_tokens", c.vocab, c.hidden, f.number("embedding_multiplier"))
    for i in range(c.layers):
        name = f"model.layers.{i}"
        with b.region("layer", i, "mixers"):
            h = b.norm(x, f"{name}.input_layernorm", c.eps)
            ssm = b.scale(mamba(b, h, f, c.hidden, i), f.number("ssm_out_multiplier"))
            attn = attention(b, b.scale(h, f.number("attention_in_multiplier")), positions, c, f, i)
            x = b.add(x, b.add(ssm, b.scale(attn, f.number("attention_out_multiplier"))))
        with b.region("layer", i, "mlp"):
            h = b.norm(x, f"{name}.pre_ff_layernorm", c.eps)
            gate = b.scale(b.linear(h, part(f"{name}.feed_forward.gate_proj", c.ffn, "ffn", bias=c.mlp_bias)), gate_scale)
            up = b.linear(h, part(f"{name}.feed_forward.up_proj", c.ffn, "ffn", bias=c.mlp_bias))
            y = b.linear(b.mul(b.act(gate, c.act), up), part(f"{name}.feed_forward.down_proj", c.hidden, "ffn", bias=c.mlp_bias))
            x = b.add(x, b.scale(y, down_scale))
    x = b.norm(x, "model.final_layernorm", c.eps)
    logits = b.linear(b.rows(x, head), lm_head(c.vocab, c.tied))
    b.output("logits", b.scale(logits, f.number("lm_head_multiplier")))
    return model.build()

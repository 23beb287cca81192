"""Qwen3-Next: gated delta net in three layers of four, gated attention in the fourth, experts with a gated shared one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.decoder import DecoderConfig, lm_head, mlp_block, read_decoder
from llmx.models.fields import Fields
from llmx.program.attrs import AttnSpec, RecurrentSpec
from llmx.program.builder import ModelBuilder, ProgramBuilder, QuantOf, R, T, part
from llmx.program.ops import Model, Value
from tests.program.paper.qwen3_moe import is_sparse, moe_spec


def delta_net(b: ProgramBuilder, h: Value, f: Fields, hidden: int, layer: int) -> Value:
    """Projections lie per key head as q, k, v, z and b, a; they are regrouped before the scan."""
    name = f"model.layers.{layer}.linear_attn"
    k_heads, v_heads = f.integer("linear_num_key_heads"), f.integer("linear_num_value_heads")
    k_dim, v_dim, conv = f.integer("linear_key_head_dim"), f.integer("linear_value_head_dim"), f.integer("linear_conv_kernel_dim")
    per, keys, values = v_heads // k_heads, k_heads * k_dim, v_heads * v_dim
    qkvz = b.linear(h, part(f"{name}.in_proj_qkvz", 2 * keys + 2 * values))
    q, k, v, z = b.split(b.view(qkvz, T, k_heads, 2 * (k_dim + per * v_dim)), k_dim, k_dim, per * v_dim, per * v_dim)
    beta, a = b.split(b.view(b.linear(h, part(f"{name}.in_proj_ba", 2 * v_heads)), T, k_heads, 2 * per), per, per)
    dims = {"conv": conv, "k_dim": k_dim, "k_heads": k_heads, "v_dim": v_dim, "v_heads": v_heads}
    weights = {
        "conv": b.tensor(f"{name}.conv1d.weight", 2 * keys + values, 1, conv),
        "a_log": b.tensor(f"{name}.A_log", v_heads),
        "dt_bias": b.tensor(f"{name}.dt_bias", v_heads),
    }
    qkv = b.concat(b.flat(q), b.flat(k), b.flat(v))
    spec = RecurrentSpec("gated_delta", tuple(sorted(dims.items())), eps=1e-6)
    y = b.recurrent(f"layers.{layer}.delta", spec, qkv, b.flat(a), b.flat(beta), weights=weights)
    per_head = (T, v_heads, v_dim)
    y = b.norm(b.view(y, *per_head), f"{name}.norm", f.number("rms_norm_eps"), gate=b.view(z, *per_head), gate_after=True)
    return b.linear(b.flat(y), part(f"{name}.out_proj", hidden))


def attention(b: ProgramBuilder, h: Value, positions: Value, c: DecoderConfig, layer: int) -> Value:
    """Attention whose result is multiplied by sigmoid of a gate that lies beside q."""
    s, name = c.qkv, f"model.layers.{layer}.self_attn"
    rows = (("q_proj", 2 * s.q_heads, "heads"), ("k_proj", s.kv_heads, "kv_heads"), ("v_proj", s.kv_heads, "kv_heads"))
    qkv = b.linear(h, *(part(f"{name}.{p}", n * s.head_dim, split, bias=c.qkv_bias) for p, n, split in rows))
    q, k, v, gate = b.qkv_prep(qkv, s, positions, f"{name}.q_norm", f"{name}.k_norm")
    state = b.state(f"layers.{layer}.attn", KVSpec("full", s.kv_heads, s.head_dim, s.v_head_dim))
    b.kv_write(state, k, v)
    o = b.attention(state, q, k, v, spec=AttnSpec(s.q_heads, s.kv_heads, s.head_dim, s.v_head_dim, s.head_dim**-0.5))
    return b.linear(b.mul(o, b.act(gate, "sigmoid")), part(f"{name}.o_proj", c.hidden, "heads", bias=c.o_bias))


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a Qwen3NextConfig. Its norms multiply by 1 + weight, except the gated one."""
    f, c, model = Fields(config), read_decoder(config), ModelBuilder(quant)
    c, moe = replace(c, qkv=replace(c.qkv, qk_norm="head", norm_offset=1.0, gate=True)), moe_spec(f)
    types = f.per_layer("layer_types", c.layers) or ()
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.embed_tokens", c.vocab, c.hidden)
    for i in range(c.layers):
        name, full = f"model.layers.{i}", types[i] == "full_attention"
        with b.region("layer", i, "attn" if full else "delta"):
            h = b.norm(x, f"{name}.input_layernorm", c.eps, offset=1.0)
            x = b.add(x, attention(b, h, positions, c, i) if full else delta_net(b, h, f, c.hidden, i))
        with b.region("layer", i, "mlp"):
            h, mlp = b.norm(x, f"{name}.post_attention_layernorm", c.eps, offset=1.0), f"{name}.mlp"
            if is_sparse(f, i):
                shared = mlp_block(b, h, f.integer("shared_expert_intermediate_size"), c.act, f"{mlp}.shared_expert")
                gate = b.act(b.linear(h, part(f"{mlp}.shared_expert_gate", 1)), "sigmoid")
                y = b.add(b.moe(h, moe, f"{mlp}.gate", f"{mlp}.experts"), b.mul(shared, gate))
            else:
                y = mlp_block(b, h, c.ffn, c.act, mlp)
            x = b.add(x, y)
    b.output("logits", b.linear(b.rows(b.norm(x, "model.norm", c.eps, offset=1.0), head), lm_head(c.vocab, c.tied)))
    return model.build()

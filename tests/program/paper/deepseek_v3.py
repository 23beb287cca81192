"""DeepSeek-V3: latent attention, routed experts in groups, shared experts, dense layers first."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.decoder import ACTIVATIONS, lm_head, mlp_block
from llmx.models.fields import Fields
from llmx.models.rope import rope_spec
from llmx.program.attrs import MlaAttrs, MlaSpec, MoeSpec
from llmx.program.builder import ModelBuilder, ProgramBuilder, QuantOf, R, part
from llmx.program.ops import Model, Value


def mla_spec(config: Mapping[str, Any], f: Fields) -> MlaSpec:
    """Latent attention; yarn's mscale enters the scale twice."""
    nope, rotary = f.integer("qk_nope_head_dim"), f.integer("qk_rope_head_dim")
    rope = rope_spec({**config, "partial_rotary_factor": 1.0}, rotary, "gptj" if f.flag("rope_interleave", True) else "neox")
    params = dict(rope.params)
    scale = (nope + rotary) ** -0.5
    if rope.scaling == "yarn" and params.get("mscale_all_dim"):
        scale *= (0.1 * params["mscale_all_dim"] * log(params["factor"]) + 1.0) ** 2
    return MlaSpec(f.integer("num_attention_heads"), f.integer("kv_lora_rank"), nope, rotary, f.integer("v_head_dim"), scale, rope)


def moe_spec(f: Fields) -> MoeSpec:
    """Sigmoid scores, choice inside the best groups."""
    return MoeSpec(
        experts=f.integer("n_routed_experts"),
        top_k=f.integer("num_experts_per_tok"),
        score="sigmoid",
        groups=f.integer("n_group"),
        top_groups=f.integer("topk_group"),
        normalize=f.flag("norm_topk_prob"),
        scale=f.number("routed_scaling_factor"),
        ffn=f.integer("moe_intermediate_size"),
    )


def attention(b: ProgramBuilder, h: Value, positions: Value, spec: MlaSpec, f: Fields, layer: int) -> Value:
    """Low-rank q, compressed kv, latent attention, o_proj."""
    name, eps, q_rows = f"model.layers.{layer}.self_attn", 1e-6, spec.q_heads * (spec.qk_nope + spec.qk_rope)
    rank = f.get("q_lora_rank")
    compressed = [part(f"{name}.kv_a_proj_with_mqa", spec.kv_lora + spec.qk_rope)]
    if rank is None:
        q, c_kv, k_pe = b.split(b.linear(h, part(f"{name}.q_proj", q_rows, "heads"), *compressed), q_rows, spec.kv_lora, spec.qk_rope)
    else:
        q_a, c_kv, k_pe = b.split(b.linear(h, part(f"{name}.q_a_proj", rank), *compressed), rank, spec.kv_lora, spec.qk_rope)
        q = b.linear(b.norm(q_a, f"{name}.q_a_layernorm", eps), part(f"{name}.q_b_proj", q_rows, "heads"))
    c_kv = b.norm(c_kv, f"{name}.kv_a_layernorm", eps)
    state = b.state(f"layers.{layer}.attn", KVSpec("latent", 1, spec.kv_lora + spec.qk_rope))
    kv_b = b.tensor(f"{name}.kv_b_proj.weight", spec.q_heads * (spec.qk_nope + spec.v_head_dim), spec.kv_lora)
    o = b.emit1("mla", q, c_kv, k_pe, positions, attrs=MlaAttrs(spec), weights={"kv_b": kv_b}, states=[state])
    return b.linear(o, part(f"{name}.o_proj", f.integer("hidden_size"), "heads"))


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a DeepseekV3Config."""
    f, model = Fields(config), ModelBuilder(quant)
    hidden, vocab, eps, act = f.integer("hidden_size"), f.integer("vocab_size"), f.number("rms_norm_eps"), f.choice("hidden_act", ACTIVATIONS)
    spec, moe, b = mla_spec(config, f), moe_spec(f), model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.embed_tokens", vocab, hidden)
    for i in range(f.integer("num_hidden_layers")):
        name = f"model.layers.{i}"
        with b.region("layer", i, "attn"):
            x = b.add(x, attention(b, b.norm(x, f"{name}.input_layernorm", eps), positions, spec, f, i))
        with b.region("layer", i, "mlp"):
            h = b.norm(x, f"{name}.post_attention_layernorm", eps)
            if i < f.integer("first_k_dense_replace", low=0):
                y = mlp_block(b, h, f.integer("intermediate_size"), act, f"{name}.mlp")
            else:
                routed = b.moe(h, moe, f"{name}.mlp.gate", f"{name}.mlp.experts", f"{name}.mlp.gate.e_score_correction_bias")
                shared = mlp_block(b, h, moe.ffn * f.integer("n_shared_experts"), act, f"{name}.mlp.shared_experts")
                y = b.add(routed, shared)
            x = b.add(x, y)
    x = b.norm(x, "model.norm", eps)
    b.output("logits", b.linear(b.rows(x, head), lm_head(vocab, f.flag("tie_word_embeddings"))))
    return model.build()

"""Gemma-3n text: four parallel streams (AltUp), a low-rank side path (Laurel), embeddings per layer, shared KV, sparse MLP."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.decoder import ACTIVATIONS, lm_head
from llmx.models.fields import Fields
from llmx.models.rope import rope_spec
from llmx.program.attrs import AttnSpec, QkvSpec
from llmx.program.builder import ModelBuilder, ProgramBuilder, QuantOf, R, T, part
from llmx.program.ops import Model, Value


class Gemma3n:
    """Writes the main program of one configuration."""

    def __init__(self, config: Mapping[str, Any], b: ProgramBuilder) -> None:
        f = Fields(config)
        self.config, self.f, self.b = config, f, b
        self.width, self.layers, self.eps = f.integer("hidden_size"), f.integer("num_hidden_layers"), f.number("rms_norm_eps")
        self.streams, self.per_layer = f.integer("altup_num_inputs"), f.integer("hidden_size_per_layer_input")
        self.act = f.choice("hidden_activation", ACTIVATIONS)
        self.types = f.per_layer("layer_types", self.layers) or ()
        self.first_shared = self.layers - f.integer("num_kv_shared_layers", 0, low=0)
        if f.integer("altup_active_idx", 0, low=0) != 0:
            raise ValueError("altup_active_idx other than 0 is not written here")

    def norm(self, x: Value, name: str) -> Value:
        """RMS norm with a weight."""
        return self.b.norm(x, name, self.eps)

    def same_size(self, x: Value, like: Value) -> Value:
        """x with the root mean square of `like`, row by row."""
        return self.b.mul(self.b.norm(x, None, 1e-5, eps_floor=True), self.b.reduce(like, "rms"))

    def run(self, ids: Value, positions: Value, head: Value) -> Value:
        """Ids to logits."""
        b, vocab, width = self.b, self.f.integer("vocab_size"), self.width
        x = b.embed(ids, "model.embed_tokens", vocab, width, sqrt(width))
        inputs = self.layer_inputs(ids, x)
        projected = [self.same_size(b.linear(x, part(f"model.altup_projections.{i}", width)), x) for i in range(self.streams - 1)]
        streams = b.concat(x, *projected)
        for i in range(self.layers):
            with b.region("layer", i):
                streams = self.layer(i, streams, inputs[i], positions)
        first, *rest = b.split(streams, *[width] * self.streams)
        rest = [self.same_size(b.linear(y, part(f"model.altup_unembed_projections.{i}", width)), first) for i, y in enumerate(rest)]
        together = b.view(b.concat(first, *rest), T, self.streams, width)
        x = self.norm(b.view(b.reduce(together, "mean", -2), T, width), "model.norm")
        logits = b.linear(b.rows(x, head), lm_head(vocab, tied=True))
        return b.softcap(logits, self.f.get("final_logit_softcapping"))

    def layer_inputs(self, ids: Value, x: Value) -> tuple[Value, ...]:
        """One small row per layer: a table's and a projection of the embedding, averaged."""
        b, n, total = self.b, self.per_layer, self.layers * self.per_layer
        table = b.embed(ids, "model.embed_tokens_per_layer", self.f.integer("vocab_size_per_layer_input"), total, sqrt(n), outside=0)
        projected = b.scale(b.linear(x, part("model.per_layer_model_projection", total)), self.width**-0.5)
        normed = self.norm(b.view(projected, T, self.layers, n), "model.per_layer_projection_norm")
        return b.split(b.scale(b.add(b.flat(normed), table), 1 / sqrt(2)), *[n] * self.layers)

    def router(self, x: Value, name: str) -> Value:
        """tanh scores of the streams [T, streams]."""
        h = self.b.scale(self.norm(x, f"{name}.router_norm"), 1 / self.width)
        return self.b.act(self.b.linear(h, part(f"{name}.modality_router", self.streams)), "tanh")

    def layer(self, i: int, streams: Value, layer_input: Value, positions: Value) -> Value:
        """predict all streams, run the layer on the first, correct all, add the layer's own embedding to the others."""
        b, n, width = self.b, self.streams, self.width
        name = f"model.layers.{i}"
        active = b.split(streams, width, (n - 1) * width)[0]
        coefficients = b.linear(self.router(active, f"{name}.altup"), part(f"{name}.altup.prediction_coefs", n * n))
        predicted = b.flat(b.emit1("mix", b.view(coefficients, T, n, n), b.view(streams, T, n, width)))
        predicted = b.add(predicted, streams)
        first = b.split(predicted, width, (n - 1) * width)[0]
        activated = self.transform(i, first, positions)

        gains = b.linear(self.router(activated, f"{name}.altup"), part(f"{name}.altup.correction_coefs", n))
        innovation = b.view(b.add(activated, b.scale(first, -1.0)), T, 1, width)
        change = b.emit1("mix", b.view(gains, T, n, 1), innovation)
        corrected = b.add(b.add(b.view(predicted, T, n, width), change), innovation)  # gains count from 1
        first, rest = b.split(b.flat(corrected), width, (n - 1) * width)
        scaled = b.mul(first, b.tensor(f"{name}.altup.correct_output_scale", width)) if self.f.flag("altup_correct_scale", True) else first
        gate = b.act(b.linear(scaled, part(f"{name}.per_layer_input_gate", self.per_layer)), self.act)
        own = self.norm(b.linear(b.mul(gate, layer_input), part(f"{name}.per_layer_projection", width)), f"{name}.post_per_layer_input_norm")
        rest = b.flat(b.add(b.view(rest, T, n - 1, width), b.view(own, T, 1, width)))
        return b.concat(first, rest)

    def transform(self, i: int, x: Value, positions: Value) -> Value:
        """Attention, Laurel and MLP of one layer on the active stream."""
        b, name, width = self.b, f"model.layers.{i}", self.width
        h = self.norm(x, f"{name}.input_layernorm")
        low = b.linear(h, part(f"{name}.laurel.linear_left", self.f.integer("laurel_rank")))
        laurel = b.add(h, self.norm(b.linear(low, part(f"{name}.laurel.linear_right", width)), f"{name}.laurel.post_laurel_norm"))
        attn = b.add(x, self.norm(self.attention(i, h, positions), f"{name}.post_attention_layernorm"))
        x = b.scale(b.add(attn, laurel), 1 / sqrt(2))
        h, ffn = self.norm(x, f"{name}.pre_feedforward_layernorm"), self.config["intermediate_size"][i]
        gate_up = b.linear(h, part(f"{name}.mlp.gate_proj", ffn, "ffn"), part(f"{name}.mlp.up_proj", ffn, "ffn"))
        y = b.linear(b.act_mul(gate_up, self.act, self.config["activation_sparsity_pattern"][i]), part(f"{name}.mlp.down_proj", width, "ffn"))
        return b.add(x, self.norm(y, f"{name}.post_feedforward_layernorm"))

    def attention(self, i: int, h: Value, positions: Value) -> Value:
        """Normed q, k and v; the last layers read the pages of the last layer of their type that writes any."""
        b, f, name, kind = self.b, self.f, f"model.layers.{i}.self_attn", self.types[i]
        heads, kv, d, shared = f.integer("num_attention_heads"), f.integer("num_key_value_heads"), f.integer("head_dim"), i >= self.first_shared
        window = f.integer("sliding_window") if kind == "sliding_attention" else None
        rope = rope_spec(self.config, d, layer_type=kind)
        spec = QkvSpec(heads, kv, d, d, has_kv=not shared, qk_norm="head", norm_eps=self.eps, v_norm=True, rope=rope)
        attn, bias = AttnSpec(heads, kv, d, d, 1.0, window=window), f.flag("attention_bias")
        q_part = part(f"{name}.q_proj", heads * d, "heads", bias=bias)
        if shared:
            source = max(j for j in range(self.first_shared) if self.types[j] == kind)
            (q,) = b.qkv_prep(b.linear(h, q_part), spec, positions, f"{name}.q_norm")
            o = b.attention(f"layers.{source}.attn", q, spec=attn)
        else:
            others = (part(f"{name}.{p}_proj", kv * d, "kv_heads", bias=bias) for p in "kv")
            q, k, v = b.qkv_prep(b.linear(h, q_part, *others), spec, positions, f"{name}.q_norm", f"{name}.k_norm")
            state = b.state(f"layers.{i}.attn", KVSpec("sliding" if window else "full", kv, d, d, window))
            b.kv_write(state, k, v)
            o = b.attention(state, q, k, v, spec=attn)
        return b.linear(o, part(f"{name}.o_proj", self.width, "heads", bias=bias))


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a Gemma3nTextConfig."""
    model = ModelBuilder(quant)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    b.output("logits", Gemma3n(config, b).run(ids, positions, head))
    return model.build()

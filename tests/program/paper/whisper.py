"""Whisper: an audio encoder, keys and values of the cross attention made once per request, and the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.decoder import ACTIVATIONS
from llmx.models.fields import Fields
from llmx.program.attrs import AttnSpec, QkvSpec
from llmx.program.builder import E, ModelBuilder, PartDef, ProgramBuilder, QuantOf, R, part
from llmx.program.ops import Model, Value

EPS = 1e-5
FRAMES = E("audio")  # mel frames; the encoder's rows are half as many


def projections(name: str, width: int, which: str = "qkv") -> list[PartDef]:
    """q, k, v of an attention module; k has no bias."""
    return [part(f"{name}.{p}_proj", width, "heads" if p == "q" else "kv_heads", bias=p != "k") for p in which]


def mlp(b: ProgramBuilder, x: Value, name: str, ffn: int, act: str) -> Value:
    """x + fc2(act(fc1(norm(x))))."""
    h = b.norm(x, f"{name}.final_layer_norm", EPS, "layer", bias=True)
    h = b.act(b.linear(h, part(f"{name}.fc1", ffn, "ffn", bias=True)), act)
    width = x.shape[1]
    assert isinstance(width, int)
    return b.add(x, b.linear(h, part(f"{name}.fc2", width, "ffn", bias=True)))


def encode(model: ModelBuilder, f: Fields, width: int, act: str) -> None:
    """Two convolutions, a position table, bidirectional layers."""
    b, heads = model.program("encode.audio"), f.integer("encoder_attention_heads")
    x, positions = b.input("features", (FRAMES, f.integer("num_mel_bins")), "f32"), b.input("positions", (FRAMES // 2,))
    d = width // heads
    x = b.act(b.conv1d(x, "model.encoder.conv1", width, 3), "gelu")
    x = b.act(b.conv1d(x, "model.encoder.conv2", width, 3, stride=2), "gelu")
    x = b.add(x, b.pos_embed(positions, "model.encoder.embed_positions.weight", f.integer("max_source_positions"), width))
    spec = AttnSpec(heads, heads, d, d, d**-0.5, "bidirectional")
    for i in range(f.integer("encoder_layers")):
        name = f"model.encoder.layers.{i}"
        with b.region("encoder", i, "attn"):
            h = b.norm(x, f"{name}.self_attn_layer_norm", EPS, "layer", bias=True)
            q, k, v = b.qkv_prep(b.linear(h, *projections(f"{name}.self_attn", width)), QkvSpec(heads, heads, d, d))
            x = b.add(x, b.linear(b.attention(None, q, k, v, spec=spec), part(f"{name}.self_attn.out_proj", width, "heads", bias=True)))
        with b.region("encoder", i, "mlp"):
            x = mlp(b, x, name, f.integer("encoder_ffn_dim"), act)
    b.output("encoded", b.norm(x, "model.encoder.layer_norm", EPS, "layer", bias=True))


def cross_kv(model: ModelBuilder, f: Fields, width: int, spec: KVSpec) -> None:
    """Keys and values of every decoder layer's cross attention."""
    b = model.program("cross_kv")
    encoded = b.input("encoded", (FRAMES // 2, width), "act")
    only_kv = QkvSpec(spec.kv_heads, spec.kv_heads, spec.head_dim, spec.v_head_dim, has_q=False)
    for i in range(f.integer("decoder_layers")):
        with b.region("layer", i, "cross_kv"):
            k, v = b.qkv_prep(b.linear(encoded, *projections(f"model.decoder.layers.{i}.encoder_attn", width, "kv")), only_kv)
            b.kv_write(b.state(f"layers.{i}.cross", spec), k, v)


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a WhisperConfig."""
    f, model = Fields(config), ModelBuilder(quant)
    width, heads, vocab = f.integer("d_model"), f.integer("decoder_attention_heads"), f.integer("vocab_size")
    act, d = f.choice("activation_function", ACTIVATIONS), width // heads
    encode(model, f, width, act)
    cross = KVSpec("cross", heads, d, d)
    cross_kv(model, f, width, cross)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.decoder.embed_tokens", vocab, width, width**0.5 if f.flag("scale_embedding") else 1.0)
    x = b.add(x, b.pos_embed(positions, "model.decoder.embed_positions.weight", f.integer("max_target_positions"), width))
    for i in range(f.integer("decoder_layers")):
        name = f"model.decoder.layers.{i}"
        with b.region("layer", i, "attn"):
            h = b.norm(x, f"{name}.self_attn_layer_norm", EPS, "layer", bias=True)
            q, k, v = b.qkv_prep(b.linear(h, *projections(f"{name}.self_attn", width)), QkvSpec(heads, heads, d, d))
            state = b.state(f"layers.{i}.attn", KVSpec("full", heads, d, d))
            b.kv_write(state, k, v)
            o = b.attention(state, q, k, v, spec=AttnSpec(heads, heads, d, d, d**-0.5))
            x = b.add(x, b.linear(o, part(f"{name}.self_attn.out_proj", width, "heads", bias=True)))
        with b.region("layer", i, "cross"):
            h = b.norm(x, f"{name}.encoder_attn_layer_norm", EPS, "layer", bias=True)
            (q,) = b.qkv_prep(b.linear(h, *projections(f"{name}.encoder_attn", width, "q")), QkvSpec(heads, heads, d, d, has_kv=False))
            o = b.attention(f"layers.{i}.cross", q, spec=AttnSpec(heads, heads, d, d, d**-0.5, "bidirectional", cross=True))
            x = b.add(x, b.linear(o, part(f"{name}.encoder_attn.out_proj", width, "heads", bias=True)))
        with b.region("layer", i, "mlp"):
            x = mlp(b, x, name, f.integer("decoder_ffn_dim"), act)
    x = b.norm(x, "model.decoder.layer_norm", EPS, "layer", bias=True)
    b.output("logits", b.linear(b.rows(x, head), part("proj_out", vocab, "vocab", weight="model.decoder.embed_tokens.weight")))
    return model.build()

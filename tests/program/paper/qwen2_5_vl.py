"""Qwen2.5-VL: a vision tower with attention inside windows, its rows merged into the text, rope over three axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.models.decoder import ACTIVATIONS, decoder, mlp_block
from llmx.models.fields import Fields
from llmx.models.qwen import read_qwen
from llmx.models.registry import TensorLayout
from llmx.program.attrs import AttnSpec, QkvSpec, RopeSpec
from llmx.program.builder import E, ModelBuilder, QuantOf, R, T, part
from llmx.program.ops import Model, Transform

PATCHES = E("vision")
EPS = 1e-6


def encode(model: ModelBuilder, config: Mapping[str, Any]) -> int:
    """The vision tower; gives back how many patches become one row of the text.

    Patches come in image order; `order` puts groups of merge x merge patches in window order, `restore` undoes it. positions
    (row and column), windows and frames (which patches see each other) are in window order already.
    """
    f, b = Fields(config), model.program("encode.vision")
    width, heads, merge = f.integer("hidden_size"), f.integer("num_heads"), f.integer("spatial_merge_size")
    pixels = f.integer("in_channels") * f.integer("temporal_patch_size") * f.integer("patch_size") ** 2
    d, unit, act = width // heads, merge * merge, f.choice("hidden_act", ACTIVATIONS)
    rope = RopeSpec("neox", d, 10000.0, mrope_sections=(d // 4, d // 4), axial=True)
    x, order, restore = b.input("pixels", (PATCHES, pixels), "f32"), b.input("order", (PATCHES // unit,)), b.input("restore", (PATCHES // unit,))
    positions, windows, frames = b.input("positions", (2, PATCHES)), b.input("windows", (PATCHES,)), b.input("frames", (PATCHES,))
    x = b.linear(x, part("model.visual.patch_embed.proj", width, transforms=(Transform("flatten"),)))
    x = b.view(b.take(b.view(x, PATCHES // unit, unit * width), order), PATCHES, width)
    for i in range(f.integer("depth")):
        name = f"model.visual.blocks.{i}"
        with b.region("vision", i, "attn"):
            h = b.norm(x, f"{name}.norm1", EPS)
            q, k, v = b.qkv_prep(b.linear(h, part(f"{name}.attn.qkv", 3 * width, bias=True)), QkvSpec(heads, heads, d, d, rope=rope), positions)
            seen = frames if i in f.get("fullatt_block_indexes") else windows
            o = b.attention(None, q, k, v, spec=AttnSpec(heads, heads, d, d, d**-0.5, "block"), segments=seen)
            x = b.add(x, b.linear(o, part(f"{name}.attn.proj", width, "heads", bias=True)))
        with b.region("vision", i, "mlp"):
            x = b.add(x, mlp_block(b, b.norm(x, f"{name}.norm2", EPS), f.integer("intermediate_size"), act, f"{name}.mlp", bias=True))
    x = b.view(b.norm(x, "model.visual.merger.ln_q", EPS), PATCHES // unit, unit * width)
    x = b.act(b.linear(x, part("model.visual.merger.mlp.0", unit * width, bias=True)), "gelu")
    x = b.linear(x, part("model.visual.merger.mlp.2", f.integer("out_hidden_size"), bias=True))
    b.output("embeds", b.take(x, restore))
    return unit


def build(config: Mapping[str, Any], quant: QuantOf | None = None) -> Model:
    """The Model of a Qwen2_5_VLConfig."""
    model, text = ModelBuilder(quant), config["text_config"]
    unit = encode(model, config["vision_config"])
    c = replace(read_qwen({**text, "model_type": "qwen2"}), tied=bool(config.get("tie_word_embeddings")))
    if c.qkv.rope is not None and not c.qkv.rope.mrope_sections:  # time, row, column: the model's own default
        c = replace(c, qkv=replace(c.qkv, rope=replace(c.qkv.rope, mrope_sections=(16, 24, 24))))
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions", (3, T)), b.input("head", (R,))
    cache, index = b.input("vision.embeds", (PATCHES // unit, c.hidden), "act"), b.input("vision.index")
    table = "model.language_model.embed_tokens"
    x = b.emit1("merge_embeds", b.embed(ids, table, c.vocab, c.hidden), cache, index)
    x = decoder(b, x, positions, c, TensorLayout(), "model.language_model")
    b.output("logits", b.linear(b.rows(x, head), part("lm_head", c.vocab, "vocab", weight=f"{table}.weight" if c.tied else None)))
    return model.build()

"""Decoder: the block that most families share, with what they change as options. Configuration in, Programs out.

layer = norm, qkv, attention, add, norm, gate and up, down, add; then norm, head rows, head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from llmx.errors import ModelError
from llmx.kv.spec import KVSpec
from llmx.models.fields import Fields
from llmx.models.registry import TensorLayout
from llmx.models.rope import rope_spec
from llmx.program.attrs import AttnSpec, QkvSpec, RopeSpec
from llmx.program.builder import ModelBuilder, PartDef, ProgramBuilder, QuantOf, R, part
from llmx.program.ops import Model, Transform, Value
from llmx.record import record

__all__ = ["ACTIVATIONS", "IGNORED", "DecoderConfig", "attention_block", "build_decoder", "decoder", "layer_windows", "lm_head", "mlp_block", "read_decoder"]

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
}
IGNORED = (".rotary_emb.inv_freq", "rope_freqs.weight", ".attn_rot_embd.weight")  # tensors that older checkpoints carry for what the configuration says


@record
class DecoderConfig:
    """What the configurations of the families come down to.

    windows: sliding window per layer, None: full attention. ropes: rotary embedding per layer where it is not qkv.rope in all
    (None: none in that layer). norms: before attention and MLP (pre), behind them (post), or both (sandwich). norm_offset: added to
    the weights of norms. attn_scale: of the scores, None: head_dim ** -0.5. attn_cap, logit_cap: c tanh(x / c) of scores and logits.
    embed_scale, residual_scale, logit_scale: factors of the embedding, of what a layer adds, of the logits. fused: the checkpoint
    has qkv_proj and gate_up_proj in one tensor each.
    """

    hidden: int
    layers: int
    vocab: int
    ffn: int
    qkv: QkvSpec
    windows: tuple[int | None, ...]
    eps: float
    act: str
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    ropes: tuple[RopeSpec | None, ...] | None = None
    norms: Literal["pre", "post", "sandwich"] = "pre"
    norm_offset: float = 0.0
    attn_scale: float | None = None
    attn_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    fused: bool = False

    def layer_qkv(self, layer: int) -> QkvSpec:
        """The QkvSpec of one layer."""
        return self.qkv if self.ropes is None else replace(self.qkv, rope=self.ropes[layer])


def read_decoder(config: Mapping[str, Any], act_field: str = "hidden_act", tied: bool = False) -> DecoderConfig:
    """The fields that nearly all families write alike; a family replaces what it has otherwise. Full attention in all layers.

    tied: meaning of an absent tie_word_embeddings. Raises ModelError naming the field at fault.
    """
    f = Fields(config)
    hidden, heads, layers = f.integer("hidden_size"), f.integer("num_attention_heads"), f.integer("num_hidden_layers")
    kv_heads = f.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"config field 'num_attention_heads' is {heads}; a multiple of num_key_value_heads ({kv_heads}) is needed")
    if f.get("head_dim") is None and hidden % heads:
        raise ModelError(f"config field 'hidden_size' is {hidden}; a multiple of num_attention_heads ({heads}) is needed where head_dim is absent")
    head_dim = f.integer("head_dim", hidden // heads)
    eps = f.number("rms_norm_eps", 1e-6, above=0.0)
    return DecoderConfig(
        hidden=hidden,
        layers=layers,
        vocab=f.integer("vocab_size"),
        ffn=f.integer("intermediate_size"),
        qkv=QkvSpec(heads, kv_heads, head_dim, head_dim, norm_eps=eps, rope=rope_spec(config, head_dim)),
        windows=(None,) * layers,
        eps=eps,
        act=f.choice(act_field, ACTIVATIONS, "silu"),
        qkv_bias=f.flag("attention_bias"),
        o_bias=f.flag("attention_bias"),
        mlp_bias=f.flag("mlp_bias"),
        tied=f.flag("tie_word_embeddings", tied),
    )


def layer_windows(f: Fields, layers: int, otherwise: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer: sliding as `layer_types` says, or, where there is none, as otherwise(layer) says.

    Raises ModelError for a type that is unknown and for sliding layers without a window.
    """
    types = f.per_layer("layer_types", layers)
    known = {"sliding_attention": True, "full_attention": False}
    for kind in types or ():
        if kind not in known:
            raise ModelError(f"config field 'layer_types' has {kind!r}; known: {', '.join(sorted(known))}")
    sliding = [otherwise(i) if types is None else known[types[i]] for i in range(layers)]
    window = f.integer("sliding_window") if any(sliding) else None
    return tuple(window if slides else None for slides in sliding)


def attention_block(
    b: ProgramBuilder, h: Value, positions: Value, c: DecoderConfig, layer: int, prefix: str, layout: TensorLayout, state: str | None = None
) -> Value:
    """Projections, pages and attention of one layer, o_proj included. state: its name; None: "layers.<layer>.attn"."""
    s, window = c.layer_qkv(layer), c.windows[layer]
    qkv = b.linear(h, *_qkv_parts(c, s, prefix, layout))
    norms = [f"{prefix}.q_norm", f"{prefix}.k_norm"] if s.qk_norm != "none" else [None, None]
    q, k, v = b.qkv_prep(qkv, s, None if s.rope is None else positions, *norms)
    kv = KVSpec("sliding" if window else "full", s.kv_heads, s.head_dim, s.v_head_dim, window)
    pages = b.state(state or f"layers.{layer}.attn", kv)
    b.kv_write(pages, k, v)
    scale = s.head_dim**-0.5 if c.attn_scale is None else c.attn_scale
    spec = AttnSpec(s.q_heads, s.kv_heads, s.head_dim, s.v_head_dim, scale=scale, window=window, soft_cap=c.attn_cap)
    return b.linear(b.attention(pages, q, k, v, spec=spec), part(f"{prefix}.o_proj", c.hidden, "heads", bias=c.o_bias))


def _qkv_parts(c: DecoderConfig, s: QkvSpec, prefix: str, layout: TensorLayout) -> list[PartDef]:
    parts, first = [], 0
    for name, heads, width in (("q", s.q_heads, s.head_dim), ("k", s.kv_heads, s.head_dim), ("v", s.kv_heads, s.v_head_dim)):
        rows = heads * width
        cut = (Transform("slice_rows", (first, first + rows)),) if c.fused else ()
        halves = (Transform("permute_rows", (heads,)),) if layout.rope_pairs and name != "v" else ()
        target, tensor = (f"{prefix}.qkv_proj.{name}", f"{prefix}.qkv_proj.weight") if c.fused else (f"{prefix}.{name}_proj", None)
        parts.append(part(target, rows, "heads" if name == "q" else "kv_heads", bias=c.qkv_bias, weight=tensor, transforms=(*cut, *halves)))
        first += rows
    return parts


def mlp_block(b: ProgramBuilder, h: Value, ffn: int, act: str, prefix: str, bias: bool = False, fused: bool = False) -> Value:
    """down(act(gate(h)) * up(h)). fused: gate and up are the halves of gate_up_proj."""
    width = h.shape[-1]
    assert isinstance(width, int)
    if fused:
        cuts = [(Transform("slice_rows", (i * ffn, (i + 1) * ffn)),) for i in range(2)]
        tensor = f"{prefix}.gate_up_proj.weight"
        parts = [part(f"{prefix}.gate_up_proj.{name}", ffn, "ffn", weight=tensor, transforms=cut) for name, cut in zip(("gate", "up"), cuts, strict=True)]
    else:
        parts = [part(f"{prefix}.{name}_proj", ffn, "ffn", bias=bias) for name in ("gate", "up")]
    gate_up = b.linear(h, *parts)
    return b.linear(b.act_mul(gate_up, act), part(f"{prefix}.down_proj", width, "ffn", bias=bias))


# norms -> names before and behind attention, before and behind the MLP
_NORM_NAMES: Mapping[str, tuple[str | None, str | None, str | None, str | None]] = {
    "pre": ("input_layernorm", None, "post_attention_layernorm", None),
    "post": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "sandwich": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
}


def decoder(
    b: ProgramBuilder, x: Value, positions: Value, c: DecoderConfig, layout: TensorLayout, prefix: str = "model", hidden: tuple[int, ...] = ()
) -> Value:
    """All layers and the final norm. hidden: layers whose output becomes the result "hidden.<layer>" (for drafters)."""
    offset = 0.0 if layout.norms_whole else c.norm_offset
    c = replace(c, qkv=replace(c.qkv, norm_offset=offset)) if c.qkv.qk_norm != "none" else c
    before_attn, behind_attn, before_mlp, behind_mlp = _NORM_NAMES[c.norms]

    def norm(y: Value, name: str | None) -> Value:
        return y if name is None else b.norm(y, name, c.eps, offset=offset)

    for i in range(c.layers):
        name = f"{prefix}.layers.{i}"
        at = {place: place and f"{name}.{place}" for place in (before_attn, behind_attn, before_mlp, behind_mlp)}
        with b.region("layer", i, "attn"):
            y = attention_block(b, norm(x, at[before_attn]), positions, c, i, f"{name}.self_attn", layout)
            x = b.add(x, b.scale(norm(y, at[behind_attn]), c.residual_scale))
        with b.region("layer", i, "mlp"):
            y = mlp_block(b, norm(x, at[before_mlp]), c.ffn, c.act, f"{name}.mlp", c.mlp_bias, c.fused)
            x = b.add(x, b.scale(norm(y, at[behind_mlp]), c.residual_scale))
        if i in hidden:
            b.output(f"hidden.{i}", x)
    return norm(x, f"{prefix}.norm")


def lm_head(vocab: int, tied: bool) -> PartDef:
    """The part of the head: its own weight, or the embedding's."""
    return part("lm_head", vocab, "vocab", weight="model.embed_tokens.weight" if tied else None)


def build_decoder(c: DecoderConfig, quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a decoder."""
    model = ModelBuilder(quant)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.embed_tokens", c.vocab, c.hidden, c.embed_scale)
    x = decoder(b, x, positions, c, layout or TensorLayout(), hidden=hidden)
    logits = b.scale(b.linear(b.rows(x, head), lm_head(c.vocab, c.tied)), c.logit_scale)
    b.output("logits", b.softcap(logits, c.logit_cap))
    return model.build()

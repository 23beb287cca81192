"""The llama family: Llama 1 to 3, Mistral, SmolLM2, Qwen2, Qwen3. Configuration in, Programs out.

block = norm, qkv, attention, add, norm, gate and up, down, add; then norm, head rows, lm_head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.fields import Fields, facts_from
from llmx.models.registry import ModelDef, TensorLayout
from llmx.models.rope import rope_spec
from llmx.program.attrs import AttnSpec, QkvSpec
from llmx.program.builder import ModelBuilder, PartDef, ProgramBuilder, QuantOf, R, part
from llmx.program.ops import Model, Transform, Value

__all__ = ["ACTIVATIONS", "LlamaConfig", "attention_block", "build_llama", "decoder", "llama_models", "lm_head", "mlp_block"]

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


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """What the family's configurations come down to."""

    hidden: int
    layers: int
    vocab: int
    ffn: int
    qkv: QkvSpec
    windows: tuple[int | None, ...]  # per layer; None: full attention
    eps: float
    act: str
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    tied: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """From config.json. Raises ModelError naming the field at fault."""
        f = Fields(config)
        hidden, heads, layers = f.integer("hidden_size"), f.integer("num_attention_heads"), f.integer("num_hidden_layers")
        head_dim, model_type = f.integer("head_dim", hidden // heads), f.get("model_type", "llama")
        bias = f.flag("attention_bias")
        qkv = QkvSpec(
            q_heads=heads,
            kv_heads=f.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            v_head_dim=head_dim,
            qk_norm="head" if model_type == "qwen3" else "none",
            norm_eps=f.number("rms_norm_eps", 1e-6),
            rope=rope_spec(config, head_dim),
        )
        return cls(
            hidden, layers, f.integer("vocab_size"), f.integer("intermediate_size"), qkv, _windows(f, layers, model_type), qkv.norm_eps,
            f.choice("hidden_act", ACTIVATIONS, "silu"), bias or model_type == "qwen2", bias and model_type != "qwen2",
            f.flag("mlp_bias"), f.flag("tie_word_embeddings"),
        )  # fmt: skip


def _windows(f: Fields, layers: int, model_type: str) -> tuple[int | None, ...]:
    """Sliding window of each layer. Qwen: only with use_sliding_window, from layer max_window_layers on; Llama has none."""
    on = f.flag("use_sliding_window", model_type not in ("qwen2", "qwen3", "llama"))
    if not on or f.get("sliding_window") is None:
        return (None,) * layers
    window, types = f.integer("sliding_window"), f.per_layer("layer_types", layers)
    if types is not None:
        return tuple(window if types[i] == "sliding_attention" else None for i in range(layers))
    first = f.integer("max_window_layers", 0, low=0) if model_type in ("qwen2", "qwen3") else 0
    return tuple(window if i >= first else None for i in range(layers))


def attention_block(
    b: ProgramBuilder, h: Value, positions: Value, c: LlamaConfig, layer: int, prefix: str, layout: TensorLayout, state: str | None = None
) -> Value:
    """Projections, pages and attention of one layer, o_proj included. state: its name; None: "layers.<layer>.attn"."""
    s, window = c.qkv, c.windows[layer]
    pairs = [(Transform("permute_rows", (n,)),) if layout.rope_pairs else () for n in (s.q_heads, s.kv_heads)]
    qkv = b.linear(
        h,
        part(f"{prefix}.q_proj", s.q_heads * s.head_dim, "heads", bias=c.qkv_bias, transforms=pairs[0]),
        part(f"{prefix}.k_proj", s.kv_heads * s.head_dim, "kv_heads", bias=c.qkv_bias, transforms=pairs[1]),
        part(f"{prefix}.v_proj", s.kv_heads * s.v_head_dim, "kv_heads", bias=c.qkv_bias),
    )
    norms = [f"{prefix}.q_norm", f"{prefix}.k_norm"] if s.qk_norm != "none" else [None, None]
    q, k, v = b.qkv_prep(qkv, s, positions, *norms)
    kv = KVSpec("sliding" if window else "full", s.kv_heads, s.head_dim, s.v_head_dim, window)
    pages = b.state(state or f"layers.{layer}.attn", kv)
    b.kv_write(pages, k, v)
    spec = AttnSpec(s.q_heads, s.kv_heads, s.head_dim, s.v_head_dim, scale=s.head_dim**-0.5, window=window)
    return b.linear(b.attention(pages, q, k, v, spec=spec), part(f"{prefix}.o_proj", c.hidden, "heads", bias=c.o_bias))


def mlp_block(b: ProgramBuilder, h: Value, ffn: int, act: str, prefix: str, bias: bool = False) -> Value:
    """down(act(gate(h)) * up(h))."""
    width = h.shape[-1]
    assert isinstance(width, int)
    gate_up = b.linear(h, *(part(f"{prefix}.{name}", ffn, "ffn", bias=bias) for name in ("gate_proj", "up_proj")))
    return b.linear(b.act_mul(gate_up, act), part(f"{prefix}.down_proj", width, "ffn", bias=bias))


def decoder(
    b: ProgramBuilder, x: Value, positions: Value, c: LlamaConfig, layout: TensorLayout, prefix: str = "model", hidden: tuple[int, ...] = ()
) -> Value:
    """All layers and the final norm. hidden: layers whose output becomes the result "hidden.<layer>" (for drafters)."""
    for i in range(c.layers):
        name = f"{prefix}.layers.{i}"
        with b.region("layer", i, "attn"):
            h = b.norm(x, f"{name}.input_layernorm", c.eps)
            x = b.add(x, attention_block(b, h, positions, c, i, f"{name}.self_attn", layout))
        with b.region("layer", i, "mlp"):
            h = b.norm(x, f"{name}.post_attention_layernorm", c.eps)
            x = b.add(x, mlp_block(b, h, c.ffn, c.act, f"{name}.mlp", c.mlp_bias))
        if i in hidden:
            b.output(f"hidden.{i}", x)
    return b.norm(x, f"{prefix}.norm", c.eps)


def lm_head(vocab: int, tied: bool) -> PartDef:
    """The part of the head: its own weight, or the embedding's."""
    return part("lm_head", vocab, "vocab", weight="model.embed_tokens.weight" if tied else None)


def build_llama(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None, hidden: tuple[int, ...] = ()) -> Model:
    """The Model of a configuration. Raises ModelError naming the field at fault."""
    c, model = LlamaConfig.read(config), ModelBuilder(quant)
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, "model.embed_tokens", c.vocab, c.hidden)
    x = decoder(b, x, positions, c, layout or TensorLayout(), hidden=hidden)
    b.output("logits", b.linear(b.rows(x, head), lm_head(c.vocab, c.tied)))
    return model.build()


def llama_models() -> list[ModelDef]:
    """Definitions of the family's architectures."""
    ignored = (".rotary_emb.inv_freq", "rope_freqs.weight", ".attn_rot_embd.weight")
    families = (
        ("llama", ("LlamaForCausalLM",), ("llama",), ("llama",)),
        ("mistral", ("MistralForCausalLM",), ("mistral",), ("mistral",)),
        ("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), ("qwen2",)),
        ("qwen3", ("Qwen3ForCausalLM",), ("qwen3",), ("qwen3",)),
    )
    return [ModelDef(name, classes, types, build_llama, facts_from, gguf, ignored) for name, classes, types, gguf in families]

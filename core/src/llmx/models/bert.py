"""BERT, RoBERTa (XLM-RoBERTa, CamemBERT) and DistilBERT: encoders whose rows see the whole text, with the norm behind each sum.

They give no tokens but one row per head row: of the last layer, or of the classifier on top of it. How rows become the vector
of a text is said by llmx.models.pooling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.kv.spec import KVSpec
from llmx.models.classic import head_size, mlp
from llmx.models.decoder import ACTIVATIONS
from llmx.models.fields import Fields
from llmx.models.registry import ModelDef, ModelFacts, TensorLayout, facts_from
from llmx.program.attrs import AttnSpec, QkvSpec
from llmx.program.builder import ModelBuilder, ProgramBuilder, QuantOf, R, part
from llmx.program.ops import Model, Value
from llmx.record import record

__all__ = ["EncoderConfig", "bert_models", "build_encoder", "num_labels"]

_UNUSED = ("cls.", "lm_head.", "vocab_", "embeddings.position_ids", "embeddings.token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
_DENSE_HEADS = {"bert": ("pooler.dense", "tanh", "classifier"), "distilbert": ("pre_classifier", "relu", "classifier")}


@record
class _Names:
    """Modules of a layer in one family's files, behind the layer's own name."""

    layer: str
    q: str
    k: str
    v: str
    o: str
    attn_norm: str
    up: str
    down: str
    mlp_norm: str


_BERT = _Names(
    *("encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
_DISTIL = _Names(
    *("transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
    *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
)


@record
class EncoderConfig:
    """What the three families' configurations come down to. types: rows of the table of token types, 0: none. offset: row of position 0."""

    family: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    positions: int
    act: str
    eps: float
    types: int = 0
    offset: int = 0


def num_labels(config: Mapping[str, Any]) -> int:
    """Outputs of the classifier, 0 for a model without one: id2label counts, else num_labels; transformers' default is 2."""
    named = config.get("architectures") or [""]
    if not str(named[0]).endswith("ForSequenceClassification"):
        return 0
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, Mapping) and labels else Fields(config).integer("num_labels", 2)


def _read(config: Mapping[str, Any]) -> EncoderConfig:
    """From config.json. Raises ModelError naming the field at fault."""
    f = Fields(config)
    if config.get("model_type") == "distilbert":
        return EncoderConfig(
            "distilbert", f.integer("dim"), f.integer("n_layers"), f.integer("n_heads"), f.integer("hidden_dim"), f.integer("vocab_size"),
            f.integer("max_position_embeddings"), f.choice("activation", ACTIVATIONS, "gelu"), 1e-12,
        )  # fmt: skip
    f.refuse("position_embedding_type", "relative_key", "relative_key_query", why="positions must be absolute")
    f.refuse("is_decoder", True, why="this family is served as an encoder only")
    roberta = config.get("model_type", "bert") != "bert"
    return EncoderConfig(
        "roberta" if roberta else "bert", f.integer("hidden_size"), f.integer("num_hidden_layers"), f.integer("num_attention_heads"),
        f.integer("intermediate_size"), f.integer("vocab_size"), f.integer("max_position_embeddings"), f.choice("hidden_act", ACTIVATIONS, "gelu"),
        f.number("layer_norm_eps", 1e-12, above=0.0), f.integer("type_vocab_size", 2), f.integer("pad_token_id", 1, low=0) + 1 if roberta else 0,
    )  # fmt: skip


def build_encoder(config: Mapping[str, Any], quant: QuantOf | None = None, layout: TensorLayout | None = None) -> Model:
    """The Model of a configuration. Its result is "pooled", one row per head row. Raises ModelError naming the field at fault."""
    c, labels, model = _read(config), num_labels(config), ModelBuilder(quant)
    outer = "" if layout is not None and layout.bare else {"bert": "bert.", "roberta": "roberta.", "distilbert": "distilbert."}[c.family]
    b = model.program("main")
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    x = b.embed(ids, f"{outer}embeddings.word_embeddings", c.vocab, c.hidden)
    if c.types:
        x = b.add(x, b.embed(b.input("token_types"), f"{outer}embeddings.token_type_embeddings", c.types, c.hidden))
    x = b.add(x, b.pos_embed(positions, f"{outer}embeddings.position_embeddings.weight", c.positions, c.hidden, c.offset))
    x = b.norm(x, f"{outer}embeddings.LayerNorm", c.eps, "layer", bias=True)
    for i in range(c.layers):
        x = _layer(b, x, c, outer, i)
    x = b.rows(x, head)
    b.output("pooled", _classifier(b, x, c, outer, labels) if labels else x)
    return model.build()


def _layer(b: ProgramBuilder, x: Value, c: EncoderConfig, outer: str, i: int) -> Value:
    n = _DISTIL if c.family == "distilbert" else _BERT
    name, d = f"{outer}{n.layer}.{i}", head_size(c.hidden, c.heads, "'hidden_size' and 'num_attention_heads' ('dim' and 'n_heads')")
    with b.region("layer", i, "attn"):
        parts = (part(f"{name}.{p}", c.hidden, "kv_heads" if at else "heads", bias=True) for at, p in enumerate((n.q, n.k, n.v)))
        q, k, v = b.qkv_prep(b.linear(x, *parts), QkvSpec(c.heads, c.heads, d, d))
        state = b.state(f"layers.{i}.attn", KVSpec("full", c.heads, d, d))
        b.kv_write(state, k, v)
        o = b.attention(state, q, k, v, spec=AttnSpec(c.heads, c.heads, d, d, d**-0.5, "bidirectional"))
        x = b.norm(b.add(x, b.linear(o, part(f"{name}.{n.o}", c.hidden, "heads", bias=True))), f"{name}.{n.attn_norm}", c.eps, "layer", bias=True)
    with b.region("layer", i, "mlp"):
        y = mlp(b, x, c.act, part(f"{name}.{n.up}", c.ffn, "ffn", bias=True), part(f"{name}.{n.down}", c.hidden, "ffn", bias=True))
        return b.norm(b.add(x, y), f"{name}.{n.mlp_norm}", c.eps, "layer", bias=True)


def _classifier(b: ProgramBuilder, x: Value, c: EncoderConfig, outer: str, labels: int) -> Value:
    dense, act, last = _DENSE_HEADS.get(c.family, ("classifier.dense", "tanh", "classifier.out_proj"))
    x = b.act(b.linear(x, part(f"{outer if c.family == 'bert' else ''}{dense}", c.hidden, bias=True)), act)
    return b.linear(x, part(last, labels, bias=True))


def _facts(config: Mapping[str, Any]) -> ModelFacts:
    """Positions that the table has room for."""
    return facts_from({**config, "max_position_embeddings": (c := _read(config)).positions - c.offset, "eos_token_id": []})


def bert_models() -> list[ModelDef]:
    """Definitions of the families' architectures."""

    def define(name: str, classes: tuple[str, ...], types: tuple[str, ...]) -> ModelDef:
        names = tuple(f"{cls}{suffix}" for cls in classes for suffix in ("Model", "ForMaskedLM", "ForSequenceClassification"))
        outer = "roberta." if name == "roberta" else f"{name}."
        return ModelDef(name, names, types, build_encoder, _facts, (), _UNUSED, outer, whole_prompt_only=True)

    return [
        define("bert", ("Bert",), ("bert",)),
        define("roberta", ("Roberta", "XLMRoberta", "Camembert"), ("roberta", "xlm-roberta", "camembert")),
        define("distilbert", ("DistilBert",), ("distilbert",)),
    ]

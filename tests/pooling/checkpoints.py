"""Tiny random models with a WordPiece tokenizer, written as transformers writes them, and what transformers makes of texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

TEXTS = ["paris is the capital of france", "a", "bananas are yellow , and the capital is old ; " * 3, "france"]
PAIRS = [("capital of france", "paris is the capital"), ("a", "bananas are yellow and old and yellow"), ("is the capital old", "a")]
_WORDS = "paris is the capital of france a bananas are yellow and old , ; un ##able ##s b ##an".split()
SIZE: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "initializer_range": 0.35,
}  # fmt: skip
ENCODER: dict[str, Any] = {**SIZE, "max_position_embeddings": 64}
DISTIL: dict[str, Any] = {"vocab_size": 40, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64, "initializer_range": 0.35}
DECODER: dict[str, Any] = {**SIZE, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
LABELS: dict[str, Any] = {"id2label": {"0": "no", "1": "yes", "2": "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}
ONE_LABEL: dict[str, Any] = {"num_labels": 1}

MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**ENCODER)),
    "bert_masked": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**ENCODER)),
    "bert_labels": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**ENCODER, **LABELS)),
    "bert_cross": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**ENCODER, **ONE_LABEL)),
    "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**{**ENCODER, "type_vocab_size": 1, "pad_token_id": 1})),
    "roberta_cross": lambda: transformers.XLMRobertaForSequenceClassification(
        transformers.XLMRobertaConfig(**{**ENCODER, "type_vocab_size": 1, "pad_token_id": 1}, **ONE_LABEL)
    ),
    "distilbert": lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**DISTIL)),
    "distilbert_labels": lambda: transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig(**DISTIL, **LABELS)),
    "llama": lambda: transformers.LlamaModel(transformers.LlamaConfig(**DECODER)),
    "llama_labels": lambda: transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**DECODER, **LABELS)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, head_dim=8)),
}


def write(folder: Path, name: str, pooling: str | None = None, normalize: bool = True, **more: Any) -> Any:
    """The model, whose files are then in `folder`. pooling: a sentence-transformers mode; more: further entries of config.json."""
    torch.manual_seed(sum(map(ord, name)))
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    if more:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **more}))
    _tokenizer(typed="bert" in name and "roberta" not in name and "distil" not in name).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}))
    if pooling is not None:
        modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
        modules += [{"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}] if normalize else []
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True}))
    return model


def _tokenizer(typed: bool) -> Tokenizer:
    vocab = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    second = ":1" if typed else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=f"[CLS] $A [SEP] $B{second} [SEP]{second}", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def rows(model: Any, folder: Path, text: str, pair: str | None = None) -> np.ndarray:
    """What transformers gives: [tokens, W] of the last layer, or [labels] of a classifier."""
    encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, pair)
    given = {"input_ids": torch.tensor([encoded.ids])}
    if "Bert" in type(model).__name__ and "DistilBert" not in type(model).__name__:
        given["token_type_ids"] = torch.tensor([encoded.type_ids])
    inner = getattr(model, "bert", getattr(model, "model", model)) if type(model).__name__.endswith(("MaskedLM", "CausalLM")) else model
    with torch.no_grad():
        out = inner(**given)
    found: torch.Tensor = out.logits if hasattr(out, "logits") else out.last_hidden_state
    array: np.ndarray = found[0].numpy()
    return array


def vectors(model: Any, folder: Path, texts: Sequence[str], kind: str, normalize: bool = True) -> np.ndarray:
    """f32 [texts, W], pooled as `kind` says."""
    pool: dict[str, Callable[[np.ndarray], np.ndarray]] = {"mean": lambda r: r.mean(0), "cls": lambda r: r[0], "last": lambda r: r[-1]}
    found = np.stack([pool[kind](rows(model, folder, text)) for text in texts])
    return found / np.linalg.norm(found, axis=1, keepdims=True) if normalize else found

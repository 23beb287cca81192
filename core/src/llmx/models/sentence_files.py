"""The small files that sentence-transformers writes beside a model: which rows become the vector, and how long a text may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmx.errors import ModelError
from llmx.pooling_params import PoolingKind
from llmx.record import record
from llmx.weights.json_file import read_json, read_json_object

__all__ = ["SentenceFiles", "read_sentence_files"]

_MODES: Mapping[str, PoolingKind] = {"cls": "cls", "cls_token": "cls", "lasttoken": "last", "mean": "mean", "mean_tokens": "mean"}
_LENGTHS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json", "sentence_xlm-roberta_config.json")


@record
class SentenceFiles:
    """What the files say. present: there is a modules.json. kind: None where no pooling is named. max_length: tokens, None: the model's own."""

    present: bool = False
    kind: PoolingKind | None = None
    normalize: bool = False
    max_length: int | None = None


def read_sentence_files(folder: Path) -> SentenceFiles:
    """From modules.json and what it names. Raises ModelError for a module that cannot be computed here, naming the file."""
    if not (folder / "modules.json").is_file():
        return SentenceFiles()
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise ModelError("is no list of modules", path=str(folder / "modules.json"))
    kind: PoolingKind | None = None
    normalize = False
    for module in modules:
        name = str(module.get("type")).rsplit(".", 1)[-1]
        if name == "Pooling":
            kind = _kind(folder / str(module.get("path")) / "config.json")
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise ModelError(f"names the module {name!r}; Transformer, Pooling and Normalize can be computed here", path=str(folder / "modules.json"))
    return SentenceFiles(True, kind, normalize, _max_length(folder))


def _kind(file: Path) -> PoolingKind:
    config = read_json_object(file)
    named: list[Any] = [key.removeprefix("pooling_mode_") for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    mode = config.get("pooling_mode")
    named += [mode] if isinstance(mode, str) else mode if isinstance(mode, list) else []
    if len(named) != 1 or named[0] not in _MODES:
        what = ", ".join(map(str, named)) or "nothing"
        raise ModelError(f"pools by {what}; one of cls_token, mean_tokens and lasttoken can be computed here", path=str(file))
    return _MODES[named[0]]


def _max_length(folder: Path) -> int | None:
    for name in _LENGTHS:
        if (folder / name).is_file():
            length = read_json_object(folder / name).get("max_seq_length")
            return length if isinstance(length, int) and length > 0 else None
    return None

"""Draft models made from a tiny target, right as often as wanted."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file

__all__ = ["tie", "write_draft", "write_other_vocabulary"]


def write_draft(target: Path, folder: Path, right: str, **config: Any) -> Path:
    """A copy of a checkpoint whose head is right always ("all"), for tokens of even id ("half"), or never ("none")."""
    shutil.copytree(target, folder)
    weights = load_file(folder / "model.safetensors")
    head = weights["lm_head.weight"]
    rows = torch.arange(head.shape[0])
    if right == "none":
        rows = rows.roll(1)
    elif right == "half":
        rows[1::2] = rows[1::2].roll(1)  # odd ids among themselves
    weights["lm_head.weight"] = head[rows].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tie(source: Path, folder: Path) -> Path:
    """A copy of a checkpoint whose head is its embedding."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _configure(folder, tie_word_embeddings=True)
    return folder


def write_other_vocabulary(target: Path, folder: Path, without: tuple[str, ...] = (), renamed: Mapping[str, str] = MappingProxyType({})) -> Path:
    """A copy of a checkpoint whose tokens have other ids, by chance, some other names, and of which some are missing, as are the ids without text."""
    shutil.copytree(target, folder)
    spelled = json.loads((folder / "tokenizer.json").read_text())
    model, added = spelled["model"], spelled["added_tokens"]
    old = {word: token for word, token in model["vocab"].items() if word not in without}
    words = sorted(old)
    random.Random(0).shuffle(words)
    model["vocab"] = {renamed.get(word, word): token for token, word in enumerate(words)}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in old and all(word in old for word in pair)]
    for one in added:
        one["content"] = renamed.get(one["content"], one["content"])
        one["id"] = model["vocab"][one["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(spelled))
    weights, kept = load_file(folder / "model.safetensors"), torch.tensor([old[word] for word in words])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            weights[name] = weights[name][kept].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _configure(folder, vocab_size=len(words), bos_token_id=words.index("<s>"), eos_token_id=words.index("</s>"))
    return folder


def _configure(folder: Path, **fields: Any) -> None:
    for path in (folder / "config.json", folder / "generation_config.json"):
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, **{name: value for name, value in fields.items() if name in said or path.stem == "config"}}))

"""Draft models made from a tiny target, right as often as wanted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

__all__ = ["write_draft"]


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

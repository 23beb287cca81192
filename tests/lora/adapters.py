"""Adapters written as peft writes them, and models with them merged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

__all__ = ["ALL", "ATTENTION", "merge", "random_modules", "write_adapter"]

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
ALL = (*ATTENTION, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

Pair = tuple[np.ndarray, np.ndarray]


def random_modules(weights: Mapping[str, np.ndarray], seed: int, rank: int = 4, ends: tuple[str, ...] = ALL, size: float = 0.3) -> dict[str, Pair]:
    """module -> (A [rank, in], B [out, rank]), float32, large enough that answers change. weights: those of the checkpoint."""
    rng = np.random.default_rng(seed)
    modules = {}
    for name, weight in sorted(weights.items()):
        module = name.removesuffix(".weight")
        if module.endswith(ends):
            modules[module] = tuple(rng.normal(0, size, shape).astype(np.float32) for shape in ((rank, weight.shape[1]), (weight.shape[0], rank)))
    return modules  # type: ignore[return-value]


def write_adapter(folder: Path, modules: Mapping[str, Pair], *, alpha: float = 4.0, tensors: Mapping[str, np.ndarray] | None = None, **config: Any) -> Path:
    """A folder as save_pretrained writes it. tensors: further ones, by their whole names. config: over what the modules say."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = next(iter(modules.values()))[0].shape[0] if modules else 4
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "base_model_name_or_path": "base", "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**fields, **config}))
    stored = {f"base_model.model.{name}.lora_{role}.weight": m for name, pair in modules.items() for role, m in zip("AB", pair, strict=True)}
    save_file({**stored, **(tensors or {})}, folder / "adapter_model.safetensors")
    return folder


def merge(checkpoint: Path, modules: Mapping[str, Pair], scale: float, to: Path) -> Path:
    """The checkpoint with W + scale B A for every module."""
    to.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (to / file.name).write_bytes(file.read_bytes())
    weights = load_file(checkpoint / "model.safetensors")
    for module, (a, b) in modules.items():
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + np.float32(scale) * (b @ a)
    save_file(weights, to / "model.safetensors")
    return to

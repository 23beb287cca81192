"""Adapters written as peft writes them, and models with them merged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

__all__ = ["ALL", "ATTENTION", "merge", "random_modules", "smollm2_adapter", "tiny_checkpoint", "write_adapter"]

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


def smollm2_adapter(folder: Path, seed: int = 0, rank: int = 4, size: float = 0.1, layers: int = 2) -> Path:
    """For SmolLM2-135M: attention and MLP of the first layers."""
    rng, hidden, kv, ffn = np.random.default_rng(seed), 576, 192, 1536
    shapes = dict(zip(ALL, ((hidden, hidden), (kv, hidden), (kv, hidden), (hidden, hidden), (ffn, hidden), (ffn, hidden), (hidden, ffn)), strict=True))
    modules = {
        f"model.layers.{layer}.{name}": (rng.normal(0, size, (rank, k)).astype(np.float32), rng.normal(0, size, (rows, rank)).astype(np.float32))
        for layer in range(layers)
        for name, (rows, k) in shapes.items()
    }
    return write_adapter(folder, modules, alpha=2.0 * rank)


def tiny_checkpoint(folder: Path) -> dict[str, np.ndarray]:
    """A llama of two layers with the byte tokenizer of the tests; its weights, float32."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    rng, weights = np.random.default_rng(11), {}
    shapes = {"model.embed_tokens": (512, 64), "lm_head": (512, 64)}
    for layer in range(2):
        sizes = ((64, 64), (32, 64), (32, 64), (64, 64), (128, 64), (128, 64), (64, 128))
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in zip(ALL, sizes, strict=True)}
    for name, shape in shapes.items():
        weights[f"{name}.weight"] = rng.normal(0, 0.2, shape).astype(np.float32)
    norms = [f"model.layers.{layer}.{name}" for layer in range(2) for name in ("input_layernorm", "post_attention_layernorm")] + ["model.norm"]
    weights |= {f"{name}.weight": np.ones(64, np.float32) for name in norms}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, 512)}}
    special = [{"id": number, "content": word, "special": True} for word, number in list(words.items())[:3]]
    whitespace = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0", "added_tokens": [{**one, **whitespace} for one in special], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return weights

"""Tiny llama checkpoints as AutoGPTQ and AutoAWQ publish them: random codes, scales and zero points, packed here by plain loops, and the dense
weights that these mean.

Layouts: AutoGPTQ v0.7.1, auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py (pack and forward); AutoAWQ v0.2.9, awq/utils/packing_utils.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

__all__ = ["Packed", "hf_llama", "pack_words", "random_packed", "write_grouped"]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SHAPES = {
    **{f"self_attn.{name}_proj": shape for name, shape in {"q": (128, 128), "k": (64, 128), "v": (64, 128), "o": (128, 128)}.items()},
    **{f"mlp.{name}_proj": shape for name, shape in {"gate": (192, 128), "up": (192, 128), "down": (128, 192)}.items()},
}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 512, "intermediate_size": 192, "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "hidden_act": "silu",
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Packed:
    """tensors by the end of their name; dense: float32 [N, K]."""

    tensors: dict[str, np.ndarray]
    dense: np.ndarray


def pack_words(values: np.ndarray, bits: int) -> np.ndarray:
    """int32 [a, b] of codes [a, b, 32 / bits]: the first in the lowest bits."""
    words = np.zeros(values.shape[:2], np.uint64)
    for place in range(32 // bits):
        words |= values[:, :, place].astype(np.uint64) << np.uint64(place * bits)
    return words.astype(np.uint32).view(np.int32)


def random_packed(
    method: str, shape: tuple[int, int], *, bits: int = 4, group: int = 32, sym: bool = True, plus_one: bool = True, act_order: bool = False, seed: int = 0
) -> Packed:
    """A random matrix. group: -1 for one group per row. plus_one: GPTQ zero points are stored less one."""
    rng, (rows, cols), per = np.random.default_rng(seed), shape, 32 // bits
    size = cols if group == -1 else group
    groups, most = cols // size, (1 << bits) - 1
    codes = rng.integers(0, most + 1, (cols, rows))
    zeros = np.full((groups, rows), (most + 1) // 2) if sym else rng.integers(1, most + 1, (groups, rows))
    scales = (rng.uniform(0.3, 1.0, (groups, rows)) * 0.6 / most).astype(np.float16)
    order = np.arange(cols) // size
    if act_order:
        order = rng.permutation(order)
    dense = (scales.astype(np.float32)[order] * (codes - zeros[order]).astype(np.float32)).T
    if method == "awq":
        tensors = {
            "qweight": pack_words(codes.reshape(cols, rows // 8, 8)[:, :, AWQ_ORDER], 4),
            "qzeros": pack_words(zeros.reshape(groups, rows // 8, 8)[:, :, AWQ_ORDER], 4),
        }
    else:
        tensors = {
            "qweight": pack_words(codes.reshape(cols // per, per, rows).swapaxes(1, 2), bits),
            "qzeros": pack_words((zeros - plus_one).reshape(groups, rows // per, per), bits),
            "g_idx": order.astype(np.int32),
        }
    return Packed({**tensors, "scales": scales}, np.ascontiguousarray(dense))


def write_grouped(folder: Path, method: str, changes: dict[str, Any] | None = None, extra: dict[str, np.ndarray] | None = None, **how: Any) -> dict[str, Any]:
    """Writes the checkpoint; gives the dense float32 tensors by name. changes: of quantization_config; how: as `random_packed`."""
    rng = np.random.default_rng(7)
    dense: dict[str, np.ndarray] = {"model.embed_tokens.weight": rng.normal(0, 0.3, (512, 128)).astype(np.float32)}
    for name in ("model.norm", *(f"model.layers.{i}.{n}" for i in range(2) for n in ("input_layernorm", "post_attention_layernorm"))):
        dense[f"{name}.weight"] = rng.normal(1, 0.3, 128).astype(np.float32)
    files = dict(dense)
    for i, (layer, name) in enumerate((layer, name) for layer in range(2) for name in SHAPES):
        module = f"model.layers.{layer}.{name}"
        made = random_packed(method, SHAPES[name], seed=i, **how)
        dense[f"{module}.weight"] = made.dense
        files |= {f"{module}.{part}": values for part, values in made.tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**files, **(extra or {})}, folder / "model.safetensors")
    table: dict[str, Any] = {"quant_method": method, "bits": how.get("bits", 4), "group_size": how.get("group", 32)}
    if method == "gptq":
        form = "gptq" if how.get("plus_one", True) else "gptq_v2"
        table |= {"sym": how.get("sym", True), "desc_act": how.get("act_order", False), "checkpoint_format": form}
    else:
        table |= {"zero_point": True, "version": "gemm", "modules_to_not_convert": None}
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {**table, **(changes or {})}}))
    return dense


def hf_llama(dense: dict[str, np.ndarray]) -> Any:
    """transformers' float32 model with these weights."""
    import torch
    import transformers

    config = transformers.LlamaConfig(**{name: value for name, value in CONFIG.items() if name != "architectures"})
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config).eval().float()
    missing = model.load_state_dict({name: torch.from_numpy(values) for name, values in dense.items()}, strict=False)
    assert missing.unexpected_keys == [] and missing.missing_keys in ([], ["lm_head.weight"])
    return model

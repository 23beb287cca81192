"""Small model files, written by the formats' own libraries (gguf, safetensors)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

Tensors = dict[str, tuple[np.ndarray, str]]

# SmolLM2's shape in small: grouped heads, tied embedding
SIZES = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96, "layers": 2, "vocab": 96}


def llama_shapes(tied: bool = True) -> dict[str, tuple[int, ...]]:
    s = SIZES
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (s["vocab"], s["hidden"]), "output_norm.weight": (s["hidden"],)}
    if not tied:
        shapes["output.weight"] = (s["vocab"], s["hidden"])
    for i in range(s["layers"]):
        block = {
            "attn_norm": (s["hidden"],), "attn_q": (q, s["hidden"]), "attn_k": (kv, s["hidden"]), "attn_v": (kv, s["hidden"]),
            "attn_output": (s["hidden"], q), "ffn_norm": (s["hidden"],), "ffn_gate": (s["ffn"], s["hidden"]), "ffn_up": (s["ffn"], s["hidden"]),
            "ffn_down": (s["hidden"], s["ffn"]),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def llama_tensors(seed: int = 0, dtype: str = "q4_1", tied: bool = True) -> Tensors:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(0, 0.2, shape).astype(np.float32), "f32" if len(shape) == 1 else "q8_0" if name == "token_embd.weight" else dtype)
        for name, shape in llama_shapes(tied).items()
    }


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """write_gguf(name="model.gguf", tensors=None, architecture="llama", extra=None, drop=()) -> path of a tiny llama file."""

    def write(
        name: str = "model.gguf", tensors: Tensors | None = None, architecture: str = "llama", extra: dict[str, Any] | None = None, drop: tuple[str, ...] = ()
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        writer = gguf.GGUFWriter(path, architecture)
        s = SIZES
        settings: dict[str, Any] = {
            "block_count": s["layers"], "context_length": 256, "embedding_length": s["hidden"], "feed_forward_length": s["ffn"],
            "attention.head_count": s["heads"], "attention.head_count_kv": s["kv_heads"], "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
        }  # fmt: skip
        table = {f"{architecture}.{key}": value for key, value in settings.items() if key not in drop} | (extra or {})
        for key, value in table.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value) if value >= 0 else writer.add_int32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)
        for tensor, (values, dtype) in (llama_tensors() if tensors is None else tensors).items():
            kind = gguf.GGMLQuantizationType[dtype.upper()]
            writer.add_tensor(tensor, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def hf_config(**changes: Any) -> dict[str, Any]:
    s = SIZES
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": s["hidden"], "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"], "head_dim": s["head_dim"], "intermediate_size": s["ffn"], "num_hidden_layers": s["layers"],
        "vocab_size": s["vocab"], "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 10000.0,
        "eos_token_id": 2, "bos_token_id": 1, "hidden_act": "silu",
    }  # fmt: skip
    return {key: value for key, value in (config | changes).items() if value is not ...}


@pytest.fixture
def write_hf(tmp_path: Path) -> Callable[..., Path]:
    """write_hf(shards=1, dtype="bfloat16", tensors={name: array} | None, **config changes) -> directory of a tiny llama checkpoint.

    bools: names of boolean buffers beside the weights.
    """
    from safetensors import TensorSpec, serialize_file

    from llmx.weights.names import canonical_name

    def write(
        shards: int = 1, dtype: str = "bfloat16", tensors: dict[str, np.ndarray] | None = None, folder: str = "hf", bools: tuple[str, ...] = (), **changes: Any
    ) -> Path:
        directory = tmp_path / folder
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(hf_config(**changes)))
        if tensors is None:
            tensors = {canonical_name(name): values for name, (values, _) in llama_tensors().items()}
        kind = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}[dtype]
        raw = {name: np.ascontiguousarray(gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.upper()])) for name, values in tensors.items()}
        encoded = {name: TensorSpec(dtype=dtype, shape=tensors[name].shape, data_ptr=data.ctypes.data, data_len=data.nbytes) for name, data in raw.items()}
        mask = np.ones(4, np.uint8)
        encoded |= {name: TensorSpec(dtype="bool", shape=(4,), data_ptr=mask.ctypes.data, data_len=4) for name in bools}
        if shards == 1:
            serialize_file(encoded, str(directory / "model.safetensors"))
            return directory
        weight_map = {}
        for index in range(shards):
            part = {name: encoded[name] for name in sorted(encoded)[index::shards]}
            file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
            serialize_file(part, str(directory / file))
            weight_map |= dict.fromkeys(part, file)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return directory

    return write


@pytest.fixture
def tiny_tensors() -> Tensors:
    """The tensors that write_gguf writes by default: name -> (float32 array, type)."""
    return llama_tensors()

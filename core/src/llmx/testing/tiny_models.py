"""Models small enough to build in a moment: two layers, random weights large enough that a mistake shows, all in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmx.errors import ModelError
from llmx.executor import HostTensor, ModelBundle
from llmx.models.builtin import builtin_models
from llmx.models.registry import TensorLayout
from llmx.program.ops import Model, QuantKey, WeightRef
from llmx.program.verify import verify
from llmx.weights.quant import dequantize, quant_key, quantize
from llmx.weights.transforms import fit

__all__ = ["TINY", "MemorySource", "bundle_from", "bundle_of", "memory", "stored", "tensors_of", "tiny_llama"]

TINY: Mapping[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "intermediate_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "max_position_embeddings": 2048,
}  # fmt: skip


class MemorySource:
    """A WeightSource over tensors in memory."""

    def __init__(self, tensors: Mapping[str, HostTensor]) -> None:
        self.tensors = dict(tensors)

    def names(self) -> Iterable[str]:
        """Names of all tensors."""
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, in elements."""
        return self.tensors[name].shape

    def quant(self, name: str) -> QuantKey:
        """How one tensor is stored."""
        return quant_key(self.tensors[name].dtype)

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor that `ref` names, with its transforms. Raises ModelError for one that is missing."""
        if ref.name not in self.tensors:
            raise ModelError(f"tensor {ref.name!r} is missing", path="memory")
        return fit(self.tensors[ref.name], ref, "memory")

    def close(self) -> None:
        """Nothing is mapped."""


def bundle_of(model: Model, seed: int = 0, vocab: int = 512, max_model_len: int = 2048) -> ModelBundle:
    """Random weights for every tensor that a model names, stored as its quant keys say."""
    verify(model)
    rng = np.random.default_rng(seed)
    tensors = {}
    for ref in model.weights().values():
        assert not ref.transforms
        spread = 0.2 if len(ref.shape) > 1 else 0.1
        values = (rng.standard_normal(ref.shape) * spread + (1.0 if len(ref.shape) == 1 else 0.0)).astype(np.float32)
        tensors[ref.name] = quantize(values, str(ref.quant))
    return ModelBundle("tiny", "tiny", model, MemorySource(tensors), vocab, max_model_len)


def bundle_from(model: Model, tensors: Mapping[str, np.ndarray], vocab: int = 512, max_model_len: int = 256) -> ModelBundle:
    """A model with these tensors, as float32."""
    return ModelBundle("tiny", "tiny", model, memory(tensors), vocab, max_model_len)


def memory(tensors: Mapping[str, np.ndarray]) -> MemorySource:
    """float32 tensors as a WeightSource."""
    return MemorySource({name: stored(values) for name, values in tensors.items()})


def stored(values: np.ndarray, scheme: str = "f32") -> HostTensor:
    """An array of any rank, stored as `scheme`."""
    values = np.asarray(values, np.float32)
    return replace(quantize(values.reshape(1, -1) if values.ndim < 2 else values, scheme), shape=values.shape)


def tensors_of(bundle: ModelBundle) -> dict[str, np.ndarray]:
    """What the stored tensors of a bundle in memory mean, float64 by name."""
    source = bundle.weights
    assert isinstance(source, MemorySource)
    return {name: np.asarray(dequantize(tensor), np.float64).reshape(tensor.shape) for name, tensor in source.tensors.items()}


def tiny_llama(scheme: str = "f32", head: str | None = None, seed: int = 0, **changes: Any) -> ModelBundle:
    """A two-layer llama; matrices stored as `scheme`, the embedding as `head`, vectors as f32."""

    def quant(name: str) -> QuantKey:
        if "norm" in name or name.endswith("bias"):
            return quant_key("f32")
        return quant_key((head or scheme) if "embed" in name else scheme)

    config = {**TINY, **changes}
    return bundle_of(builtin_models().find(config).build(config, quant, TensorLayout()), seed, config["vocab_size"])

"""The weights of an op by the keys under which kernels know them, and their values."""

from __future__ import annotations

import numpy as np

from llmx.program.ops import Op, WeightRef
from llmx.weights.host_tensor import HostTensor
from llmx.weights.quant import dequantize
from llmx.weights.quant.groups import AS_BLOCKS, as_blocks, parts_of

__all__ = ["AS_BLOCKS", "as_blocks", "dense", "parts_of", "weight_refs"]


def dense(tensor: HostTensor) -> np.ndarray:
    """float32 in the tensor's shape: the values that its stored bytes mean."""
    return dequantize(tensor)


def weight_refs(ops: tuple[Op, ...]) -> dict[str, WeightRef]:
    """Every weight of an op, or of a fused run of ops, under the keys of `Weights`."""
    refs = {}
    for number, op in enumerate(ops):
        prefix = f"{number}:" if len(ops) > 1 else ""
        for role, parts in op.weights.items():
            for i, part in enumerate(parts):
                refs[f"{prefix}{role}.{i}"] = part.weight
                if part.bias is not None:
                    refs[f"{prefix}{role}.{i}.bias"] = part.bias
    return refs

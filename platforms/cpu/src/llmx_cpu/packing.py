"""Packer: brings weights from a checkpoint into the native engine, each once, in the layout of csrc/linear.h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from llmx.errors import ModelError
from llmx.executor import BLOCK_BYTES, HostTensor, Progress, WeightSource
from llmx.executor.op_weights import as_blocks
from llmx.program.ops import Transform, WeightRef
from llmx_cpu.native import WEIGHT_TYPES, call, pointer

__all__ = ["Packer", "as_float32"]

Key = tuple[str, tuple[Transform, ...]]


def as_float32(tensor: HostTensor) -> np.ndarray:
    """Values of an unquantised tensor, float32, in its shape. Raises ModelError for another type."""
    data = np.ascontiguousarray(tensor.data)
    if tensor.dtype == "f32":
        values = data.view(np.float32)
    elif tensor.dtype == "f16":
        values = data.view(np.float16).astype(np.float32)
    elif tensor.dtype == "bf16":
        values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        raise ModelError(f"a vector is stored as {tensor.dtype}; f32, f16 or bf16 is needed")
    return values.reshape(tensor.shape)


@dataclass(slots=True)
class Packer:
    """Implements lower.builder.Weights. full: everything as float32. int8: quantised weights get int8 inputs, not int16."""

    engine: int
    source: WeightSource
    full: bool
    int8: bool
    total: int
    progress: Progress
    handles: dict[Key, int] = field(default_factory=dict)
    vectors: dict[Any, int] = field(default_factory=dict)
    matrices: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # handle -> (packed storage, rows, columns)

    def weight(self, ref: WeightRef) -> int:
        """Handle of a packed matrix. Raises ModelError for a storage that there are no kernels for."""
        key = (ref.name, ref.transforms)
        if key not in self.handles:
            self._advance()
            self.handles[key] = self._pack(ref, self.source.get(ref))
        return self.handles[key]

    def vector(self, ref: WeightRef, offset: float = 0.0) -> int:
        """Handle of a vector, `offset` added in float32."""
        key = (ref.name, ref.transforms, offset)
        if key not in self.vectors:
            self._advance()
            values = as_float32(self.source.get(ref)).reshape(-1)
            self.vectors[key] = self._add(values + np.float32(offset) if offset else values)
        return self.vectors[key]

    def constant(self, key: Any, make: Callable[[], np.ndarray]) -> int:
        """Handle of an array that make() gives, made once per key."""
        if key not in self.vectors:
            self.vectors[key] = self._add(make())
        return self.vectors[key]

    def _advance(self) -> None:
        self.progress("weights", min(1.0, (len(self.handles) + len(self.vectors)) / max(1, self.total)))

    def _add(self, values: np.ndarray) -> int:
        array = np.ascontiguousarray(values, dtype=np.float32)
        return call("llmx_engine_vector", self.engine, pointer(array), array.size)

    def _pack(self, ref: WeightRef, tensor: HostTensor) -> int:
        tensor = as_blocks(tensor)  # groups of GPTQ and AWQ: the same values in blocks of 32
        if tensor.dtype not in WEIGHT_TYPES:
            raise ModelError(f"tensor {ref.name!r} is stored as {tensor.dtype}; the CPU platform has kernels for {', '.join(WEIGHT_TYPES)}")
        rows, cols = prod(tensor.shape[:-1]), tensor.shape[-1]
        elements, size = BLOCK_BYTES[tensor.dtype]
        if cols % elements:
            raise ModelError(f"tensor {ref.name!r} has {cols} columns, not a multiple of the {elements} elements of a {tensor.dtype} block")
        data = np.ascontiguousarray(tensor.data).reshape(rows, -1)
        stored = WEIGHT_TYPES[tensor.dtype]
        packed = WEIGHT_TYPES["f32"] if self.full else stored
        handle = call("llmx_engine_weight", self.engine, stored, packed, int(self.int8), rows, cols, pointer(data), cols // elements * size)
        self.matrices[handle] = ("f32" if self.full else tensor.dtype, rows, cols)
        return handle

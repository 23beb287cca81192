"""Weights: what a kernel's `pack` sees of a checkpoint, as stored or as dense arrays on the device; each made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmx.executor import HostTensor, WeightSource
from llmx.executor.op_weights import dense, weight_refs
from llmx.program.ops import Op, Part, WeightRef
from llmx_tpu.mesh import Mesh

__all__ = ["WeightStore", "Weights", "op_weights"]


@dataclass(slots=True)
class WeightStore:
    """All weights of a model while it is loaded. A tensor that several ops use (a tied head) is one array. dtype: of matrices."""

    source: WeightSource
    mesh: Mesh
    dtype: Any
    max_model_len: int
    arrays: dict[Hashable, jax.Array] = field(default_factory=dict)

    def dense(self, ref: WeightRef, part: Part) -> jax.Array:
        """The values that the stored bytes mean, on the device; matrices in the executor's type, vectors in float32."""
        key = (ref.name, ref.transforms)
        if key not in self.arrays:
            values = dense(self.source.get(ref))
            matrix = values.ndim > 1
            self.arrays[key] = self.mesh.place(np.asarray(values, jnp.dtype(self.dtype) if matrix else np.float32), self.mesh.weight(part, values.shape))
        return self.arrays[key]

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> jax.Array:
        """An array on every device, made once per key."""
        if key not in self.arrays:
            self.arrays[key] = self.mesh.place(np.asarray(make()))
        return self.arrays[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays made."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(slots=True)
class Weights(Mapping[str, HostTensor]):
    """The weights of one op: HostTensors as stored, by "role.i" (Part i of the role) and "role.i.bias".

    Of a fusion the keys begin with the op's number in the run: "0:w.0". `dense` gives the values on the device.
    """

    store: WeightStore
    refs: Mapping[str, WeightRef]
    parts: Mapping[str, Part]

    def __getitem__(self, key: str) -> HostTensor:
        return self.store.source.get(self.refs[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self.refs)

    def __len__(self) -> int:
        return len(self.refs)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request: the length of tables over positions."""
        return self.store.max_model_len

    def dense(self, key: str) -> jax.Array:
        """Values of one weight on the device, shared by all ops that use it."""
        return self.store.dense(self.refs[key], self.parts[key])

    def stacked(self, keys: Sequence[str]) -> jax.Array:
        """Weights of one shape (a mixture's experts) as one array on the device, the first axis over them."""
        values = np.stack([dense(self[key]) for key in keys])
        kind = jnp.dtype(self.store.dtype) if values.ndim > 2 else np.float32
        placed = self.store.mesh.place(np.asarray(values, kind), self.store.mesh.experts(values.shape))
        self.store.arrays[keys[0], "stacked", self.refs[keys[0]].name] = placed
        return placed

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> jax.Array:
        """A table on the device, made once per key and shared."""
        return self.store.constant(key, make)


def op_weights(store: WeightStore, ops: tuple[Op, ...]) -> Weights:
    """The weights of an op, or of a fused run of ops."""
    refs, parts = weight_refs(ops), {}
    owners = [part for op in ops for of_role in op.weights.values() for part in of_role]
    for key, ref in refs.items():
        parts[key] = next(part for part in owners if ref in (part.weight, part.bias))
    return Weights(store, refs, parts)

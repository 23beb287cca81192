"""Weights: what a kernel's `pack` sees of a checkpoint, as stored or as float32 tensors on the device; each made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from llmx.executor.op_weights import dense
from llmx.program.ops import WeightRef
from llmx.weights.host_tensor import HostTensor, WeightSource

__all__ = ["WeightStore", "Weights"]


@dataclass(slots=True)
class WeightStore:
    """All weights of a model while it is loaded. A tensor that several ops use (a tied head) is one tensor."""

    source: WeightSource
    device: torch.device
    max_model_len: int
    tensors: dict[Hashable, torch.Tensor] = field(default_factory=dict)
    objects: dict[Hashable, Any] = field(default_factory=dict)

    def dense(self, ref: WeightRef) -> torch.Tensor:
        """The values that the stored bytes mean, float32 on the device."""
        return self.constant(ref, lambda: dense(self.source.get(ref)))

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> torch.Tensor:
        """An array on the device, made once per key; a copy, so that the file may be closed."""
        if key not in self.tensors:
            self.tensors[key] = torch.from_numpy(np.ascontiguousarray(make())).to(self.device, copy=True)  # memory of torch's own
        return self.tensors[key]

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What make() gives, made once per key."""
        if key not in self.objects:
            self.objects[key] = make()
        return self.objects[key]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors made."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


@dataclass(slots=True)
class Weights(Mapping[str, HostTensor]):
    """The weights of one op: HostTensors as stored, by "role.i" (Part i of the role) and "role.i.bias".

    Of a fusion the keys begin with the op's number in the run: "0:w.0". `dense` gives the float32 values on the device.
    """

    store: WeightStore
    refs: Mapping[str, WeightRef]

    def __getitem__(self, key: str) -> HostTensor:
        return self.store.source.get(self.refs[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self.refs)

    def __len__(self) -> int:
        return len(self.refs)

    @property
    def device(self) -> torch.device:
        """Where packed tensors belong."""
        return self.store.device

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request: the length of tables over positions."""
        return self.store.max_model_len

    def dense(self, key: str) -> torch.Tensor:
        """float32 values of one weight on the device, shared by all ops that use it; not to be changed."""
        return self.store.dense(self.refs[key])

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> torch.Tensor:
        """A table on the device, made once per key and shared."""
        return self.store.constant(key, make)

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What kernels of one model share beside tensors: a library's context, a weight in a library's own form. Made once per key."""
        return self.store.shared(key, make)

"""The abi torch/1: what a kernel of the torch executor is, what it is called with, and how the reference kernels are written.

An ImplDef with abi torch/1 names as its target an object with the methods of `Kernel`, or a class that makes one without
arguments. The executor calls `pack` once when the weights are loaded, `workspace` then, and `bind` when the pages exist; what
`bind` returns is called in every step: call(rows, *inputs) -> a tensor, or a tuple with one for each result of the op.

A kernel with the tag graph_safe can be recorded in a graph and replayed for other requests: of `rows` it reads sizes and `layout` alone, looks at no
value on the host, and writes nothing for a row whose place is -1.

Inputs and results are tensors on the device: float32, and int64 where the Program says i32. Of a fusion the inputs are the
values that enter the run from outside, in the order of their first use, and the results those that are used after it, in
the order of the ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch

from llmx.executor.base import Limits
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.weights import Weights
from llmx.platform.plan import OpSpec
from llmx.record import record

__all__ = ["ABI", "Bound", "Call", "Kernel", "Reference", "Spec", "Tensor", "reference"]

ABI = "torch/1"

Tensor = torch.Tensor
Spec = OpSpec | tuple[OpSpec, ...]  # a fusion gets the tuple
Call = Callable[..., Any]  # (rows: Rows, *inputs) -> Tensor | tuple[Tensor, ...]


class Kernel(Protocol):
    """One implementation of an op kind, or of a fusion."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> Any:
        """The weights in the kernel's own form. uses: the kinds of all ops that use one of them. Once, at load."""
        ...

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """Bytes of device memory that the kernel keeps for itself beside packed weights; shown in stats."""
        ...

    def bind(self, spec: Spec, packed: Any, states: tuple[StatePages, ...]) -> Call:
        """The hot call, with everything resolved. Once, when the pages of the op's states exist."""
        ...


@record
class Bound:
    """What a reference kernel knows of its op. weights: float32, by the keys of `Weights`, and the tables it prepared."""

    attrs: Any
    weights: Mapping[str, Tensor]
    states: tuple[StatePages, ...]


Function = Callable[..., Any]  # (op: Bound, rows: Rows, *inputs) -> Tensor | tuple[Tensor, ...]
Prepare = Callable[[Weights, Any], Mapping[str, Tensor]]  # (weights, attrs) -> tables by name


@record
class Reference:
    """A kernel that is one function over float32 weights. prepare: makes tables that the function reads beside the weights."""

    function: Function
    prepare: Prepare | None = None

    def pack(self, weights: Weights, spec: OpSpec, uses: tuple[str, ...]) -> dict[str, Tensor]:
        """All weights as float32, and the tables."""
        packed = {key: weights.dense(key) for key in weights}
        return {**packed, **self.prepare(weights, spec.attrs)} if self.prepare else packed

    def workspace(self, spec: OpSpec, limits: Limits) -> int:
        """None."""
        return 0

    def bind(self, spec: OpSpec, packed: dict[str, Tensor], states: tuple[StatePages, ...]) -> Call:
        """The function with its op."""
        return partial(self.function, Bound(spec.attrs, packed, states))


def reference(prepare: Prepare | None = None) -> Callable[[Function], Reference]:
    """Decorator: makes a kernel of a function."""
    return lambda function: Reference(function, prepare)

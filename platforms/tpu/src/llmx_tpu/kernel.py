"""The abi jax/1: what a kernel of the JAX executor is, what it is called with, and how the kernels here are written.

An ImplDef with abi jax/1 names as its target an object with the methods of `Kernel`, or a class that makes one without arguments.
`pack` is called once when the weights are loaded and gives a pytree of arrays; `bind` gives the call, which is traced once per
bucket: call(rows, packed, *inputs) -> an array, or a tuple with one for each result of the op. It is a pure function of what it is
given, but for pages: `rows.arrays` and `rows.table` give them, and `rows.replace` takes what `at[...].set` made of them. Layers that
are alike are traced once, so nothing in a call may depend on which of them it is.

Inputs and results are float32, and int32 where the Program says i32. Rows past the step's own are padding: what is computed for them
is never used, and they must not change pages or other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax

from llmx.platform.plan import OpSpec
from llmx.record import record
from llmx_tpu.weights import Weights

__all__ = ["ABI", "Array", "Bound", "Call", "Kernel", "Reference", "Spec", "reference"]

ABI = "jax/1"

Array = jax.Array
Spec = OpSpec | tuple[OpSpec, ...]  # a fusion gets the tuple
Call = Callable[..., Any]  # (rows: Rows, packed, *inputs) -> Array | tuple[Array, ...]


class Kernel(Protocol):
    """One implementation of an op kind, or of a fusion."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> Any:
        """A pytree of arrays on the device. uses: the kinds of all ops that use one of the weights. Once, at load."""
        ...

    def bind(self, spec: Spec, states: tuple[str, ...]) -> Call:
        """The call that is traced. states: names of the op's States."""
        ...


@record
class Bound:
    """What a kernel here knows of its op. weights: by the keys of `Weights`, and the tables it prepared."""

    attrs: Any
    weights: Mapping[str, Array]
    states: tuple[str, ...]


Function = Callable[..., Any]  # (op: Bound, rows: Rows, *inputs) -> Array | tuple[Array, ...]
Prepare = Callable[[Weights, Any], Mapping[str, Array]]  # (weights, attrs) -> tables by name


@record
class Reference:
    """A kernel that is one function over dense weights. prepare: makes tables that the function reads beside them."""

    function: Function
    prepare: Prepare | None = None

    def pack(self, weights: Weights, spec: OpSpec, uses: tuple[str, ...]) -> dict[str, Array]:
        """All weights, dense, and the tables."""
        packed = {key: weights.dense(key) for key in weights}
        return {**packed, **self.prepare(weights, spec.attrs)} if self.prepare else packed

    def bind(self, spec: OpSpec, states: tuple[str, ...]) -> Call:
        """The function with its op."""
        return partial(self._call, spec.attrs, states)

    def _call(self, attrs: Any, states: tuple[str, ...], rows: Any, packed: Mapping[str, Array], *inputs: Array) -> Any:
        return self.function(Bound(attrs, packed, states), rows, *inputs)


def reference(prepare: Prepare | None = None) -> Callable[[Function], Reference]:
    """Decorator: makes a kernel of a function."""
    return lambda function: Reference(function, prepare)

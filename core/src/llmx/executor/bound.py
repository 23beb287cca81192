"""BoundProgram: a Program whose every op has become one callable. Running it is a loop over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from llmx.errors import PlatformError
from llmx.program.ops import Dim, Op, Program, Value
from llmx.record import record

__all__ = ["BoundOps", "BoundProgram", "Sizes", "Values", "kinds_using"]

Tensor = Any  # an array of the executor's library, with a `shape`
Call = Callable[..., Any]  # (rows, *inputs) -> Tensor | tuple[Tensor, ...]
Values = dict[int, Tensor]


class Sizes(Protocol):
    """What a BoundProgram asks of the rows of a step. sizes: T, N and R as numbers."""

    sizes: dict[str, int]

    def size(self, dim: Dim) -> int:
        """A dimension as a number."""
        ...


@record
class BoundOps:
    """One op, or a fused run of ops. ins: ids of what goes in, None where an optional input is absent; outs: what comes out.

    graph_safe: the kernel can be recorded in a graph. paged: it reads or writes pages.
    """

    name: str
    call: Call
    ins: tuple[int | None, ...]
    outs: tuple[Value, ...]
    graph_safe: bool = False
    paged: bool = False

    @classmethod
    def of(cls, program: Program, first: int, count: int, call: Call, provider: str, graph_safe: bool = False) -> BoundOps:
        """ops[first : first + count] of a Program, computed by one call."""
        ops = program.ops[first : first + count]
        name = f"{'+'.join(op.kind for op in ops)} in {ops[0].region} by {provider}"
        paged = any(op.states for op in ops)
        if count == 1:
            return cls(name, call, tuple(None if v is None else v.id for v in ops[0].ins), ops[0].outs, graph_safe, paged)
        inside = {v.id for op in ops for v in op.outs}
        ins = dict.fromkeys(v.id for op in ops for v in op.ins if v is not None and v.id not in inside)
        used = {v.id for op in program.ops[first + count :] for v in op.ins if v is not None}
        return cls(name, call, tuple(ins), tuple(v for op in ops for v in op.outs if v.id in used), graph_safe, paged)

    def run(self, rows: Sizes, values: Values) -> None:
        """Compute, check the shapes against what the Program says, and keep the results in `values`."""
        given = self.call(rows, *(None if i is None else values[i] for i in self.ins))
        results: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)
        if len(results) != len(self.outs):
            raise PlatformError(f"{self.name} gave {len(results)} results, the Program has {len(self.outs)}")
        for value, result in zip(self.outs, results, strict=True):
            wanted = tuple(rows.size(dim) for dim in value.shape)
            if tuple(result.shape) != wanted:
                raise PlatformError(f"{self.name} gave a result of shape {list(result.shape)}, the Program says {list(wanted)}")
            values[value.id] = result


class BoundProgram:
    """A Program in two parts: what all rows need, run once, and what depends on the input `head`, run for a block of head rows.

    body_ops: the first part. needed: ids of the values that head rows and results read.
    """

    def __init__(self, program: Program, bound: Iterable[BoundOps]) -> None:
        self._inputs = {name: value.id for name, value in program.inputs.items()}
        self._results = {name: value.id for name, value in program.outputs().items()}
        head = {self._inputs["head"]} if "head" in self._inputs else set()
        self.body_ops: list[BoundOps] = []
        self._head: list[BoundOps] = []
        for one in bound:
            if head & {i for i in one.ins if i is not None}:
                head |= {value.id for value in one.outs}
                self._head.append(one)
            else:
                self.body_ops.append(one)
        self._late = head
        self.needed = {i for one in self._head for i in one.ins if i is not None} | set(self._results.values())
        self._free = _last_uses(self.body_ops, self.needed)

    def body(self, rows: Sizes, inputs: Mapping[str, Tensor]) -> Values:
        """The values that head rows and results need. Raises PlatformError for an input that the executor cannot give."""
        missing = sorted(set(self._inputs) - set(inputs) - {"head"})
        if missing:
            raise PlatformError(f"the Program reads {', '.join(missing)}; the executor gives {', '.join(sorted(inputs))} and head")
        values = {self._inputs[name]: tensor for name, tensor in inputs.items() if name in self._inputs}
        for one, free in zip(self.body_ops, self._free, strict=True):
            one.run(rows, values)
            for value in free:
                values.pop(value, None)
        return values

    def head(self, rows: Sizes, values: Values, head: Tensor) -> dict[str, Tensor]:
        """The named results of these head rows (i64 [R])."""
        values = {**values, self._inputs["head"]: head}
        rows.sizes["R"] = int(head.shape[0])
        for one in self._head:
            one.run(rows, values)
        return {name: values[i] for name, i in self._results.items() if i in self._late}

    def results(self, values: Values) -> dict[str, Tensor]:
        """The named results that do not depend on head rows."""
        return {name: values[i] for name, i in self._results.items() if i in values}


def _last_uses(ops: Sequence[BoundOps], needed: set[int]) -> list[list[int]]:
    """Per op the values that nobody reads after it."""
    free: list[list[int]] = []
    seen = set(needed)
    for one in reversed(ops):
        ids = {i for i in one.ins if i is not None} | {v.id for v in one.outs}
        free.append(sorted(ids - seen))
        seen |= ids
    return free[::-1]


def kinds_using(ops: Sequence[Op]) -> dict[Any, tuple[str, ...]]:
    """(name, transforms) of every weight -> the kinds of the ops that use it."""
    uses: dict[Any, list[str]] = {}
    for op in ops:
        for part in (part for parts in op.weights.values() for part in parts):
            for ref in (part.weight, part.bias):
                if ref is not None:
                    uses.setdefault((ref.name, ref.transforms), []).append(op.kind)
    return {key: tuple(dict.fromkeys(kinds)) for key, kinds in uses.items()}

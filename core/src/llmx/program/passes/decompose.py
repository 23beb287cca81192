"""decompose: composite ops written out as primitives, for executors that lack a kernel of the composite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmx.program.ops import Dim, DType, Op, OpRegistry, Program, Value

__all__ = ["decompose"]


def decompose(program: Program, registry: OpRegistry, wanted: Callable[[Op], bool] = lambda op: True) -> Program:
    """The Program with every op that `wanted` names and whose kind has a decomposition replaced by primitives in its place.

    Results keep their ids; values in between get new ones. Repeats until nothing is left to replace.
    """
    ids = iter(range(1 + max((v.id for v in _values(program)), default=-1), 2**62))

    def fresh(shape: tuple[Dim, ...], dtype: DType) -> Value:
        return Value(next(ids), shape, dtype)

    def steps(op: Op) -> list[Op]:
        rule = registry.get(op.kind).decompose if wanted(op) else None
        parts = [op] if rule is None else rule(op, fresh)
        return [op] if parts == [op] else [done for part in parts for done in steps(part)]

    return replace(program, ops=tuple(done for op in program.ops for done in steps(op)))


def _values(program: Program) -> list[Value]:
    return [*program.inputs.values(), *(v for op in program.ops for v in op.outs)]

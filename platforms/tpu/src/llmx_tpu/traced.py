"""TracedProgram: the main Program as three pure functions of arrays, to be compiled per bucket: all rows, the rows that a head reads, the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp

from llmx.errors import ProgramError
from llmx.executor import KVPlan
from llmx.executor.bound import BoundOps
from llmx.program.ops import Model, Program
from llmx_tpu.kernel import Array, Call
from llmx_tpu.pages import Held
from llmx_tpu.rows import Bucket, Rows

__all__ = ["Piece", "TracedProgram"]


@dataclass(frozen=True, slots=True)
class Piece:
    """An op, or a fused run of ops, with its kernel's call. Its weights are the packed ones of the same index."""

    first: int
    count: int
    call: Call
    provider: str


class TracedProgram:
    """The functions `body`, `pick` and `head`. Raises ProgramError for a head that reads more of the body than the rows in its input."""

    def __init__(self, model: Model, pieces: Sequence[Piece], plan: KVPlan, *, interpret: bool) -> None:
        program = model.programs["main"]
        self._inputs = {name: value.id for name, value in program.inputs.items()}
        self._results = {name: value.id for name, value in program.outputs().items()}
        self._groups = {name: index for index, group in enumerate(plan.groups) for name in group.need.states}
        self._offsets = {name: place * group.num_blocks for group in plan.groups for place, name in enumerate(group.need.states)}
        self._interpret = interpret
        self._body: list[BoundOps] = []
        self._picks: list[BoundOps] = []
        self._head: list[BoundOps] = []
        head, late = self._inputs["head"], {self._inputs["head"]}
        for index, piece in enumerate(pieces):
            one = BoundOps.of(program, piece.first, piece.count, partial(_call, piece.call, index), piece.provider)
            early = [i for i in one.ins if i is not None and i not in late]
            if len(early) == sum(i is not None for i in one.ins):
                self._body.append(one)
                continue
            late |= {value.id for value in one.outs}
            if program.ops[piece.first].kind in ("rows", "take") and one.ins[-1] == head:
                self._picks.append(one)
            elif early:
                raise ProgramError(f"{one.name} is part of the head and reads rows of the body: the JAX executor picks a head's rows by ops of kind rows alone")
            else:
                self._head.append(one)
        self._sources = {i for one in self._picks for i in one.ins if i is not None and i != head}
        self._picked = [value.id for one in self._picks for value in one.outs]
        self._late = late
        self._sections = _sections(program)

    @property
    def results(self) -> tuple[str, ...]:
        """Named results that do not depend on head rows."""
        return tuple(sorted(name for name, i in self._results.items() if i not in self._late))

    def _rows(self, inputs: Mapping[str, Any], pages: Held, sizes: dict[str, int]) -> Rows:
        fields = {name: value for name, value in inputs.items() if name not in ("ids", "token_types")}
        return Rows(**fields, sizes=sizes, pages=pages, groups=self._groups, offsets=self._offsets, interpret=self._interpret)

    def body(self, bucket: Bucket, packed: Sequence[Any], pages: Held, inputs: Mapping[str, Any]) -> tuple[Held, dict[str, dict[Any, Array]]]:
        """(pages, {"values": what `pick` reads, by id; "results": by name}) of one step. inputs: of `step_arrays`, and ids and token_types [T]."""
        rows = self._rows(inputs, list(pages), {"T": bucket.rows, "N": bucket.requests, "R": 0})
        positions = inputs["positions"]
        given = {
            "ids": inputs["ids"],
            "token_types": inputs["token_types"],
            "positions": jnp.broadcast_to(positions, (self._sections, *positions.shape)) if self._sections else positions,
        }
        missing = sorted(set(self._inputs) - set(given) - {"head"})
        if missing:
            raise ProgramError(f"the Program reads {', '.join(missing)}; the JAX executor gives ids, positions, token_types and head")
        values = {self._inputs[name]: value for name, value in given.items() if name in self._inputs}
        tracing = _Tracing(rows, packed)
        for one in self._body:
            one.run(tracing, values)
        return rows.pages, {
            "values": {i: values[i] for i in sorted(self._sources)},
            "results": {name: values[self._results[name]] for name in self.results},
        }

    def pick(self, values: Mapping[int, Array], index: Array) -> list[Array]:
        """What the head reads of the rows `index` [R] of the body's values."""
        known = {**values, self._inputs["head"]: index}
        sizes = {"R": index.shape[0]}
        for one in self._picks:
            one.run(_Tracing(_Sizes(sizes), ()), known)
        return [known[i] for i in self._picked]

    def head(self, packed: Sequence[Any], picked: Sequence[Array]) -> dict[str, Array]:
        """The named results of picked rows [R, ...]."""
        values = dict(zip(self._picked, picked, strict=True))
        tracing = _Tracing(_Sizes({"R": picked[0].shape[0]}), packed)
        for one in self._head:
            one.run(tracing, values)
        return {name: values[i] for name, i in self._results.items() if i in values}


@dataclass(slots=True)
class _Sizes:
    """The sizes that a head knows."""

    sizes: dict[str, int]
    size = Rows.size


@dataclass(slots=True)
class _Tracing:
    """What is handed to each op: rows for its kernel, and the packed weights of all ops."""

    rows: Any
    packed: Sequence[Any]
    sizes: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = self.rows.sizes

    def size(self, dim: Any) -> int:
        """A dimension as a number."""
        found: int = self.rows.size(dim)
        return found


def _call(call: Call, index: int, tracing: _Tracing, *inputs: Array) -> Any:
    return call(tracing.rows, tracing.packed[index] if tracing.packed else {}, *inputs)


def _sections(program: Program) -> int:
    """Rows of the input positions; 0 where it has no such axis (text: all are equal)."""
    value = program.inputs.get("positions")
    return value.shape[0] if value is not None and len(value.shape) == 2 and isinstance(value.shape[0], int) else 0

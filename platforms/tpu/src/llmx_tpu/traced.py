"""TracedProgram: the main Program as three pure functions of arrays, to be compiled per bucket: all rows, the rows that a head reads, the head."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from llmx.errors import ProgramError
from llmx.executor import KVPlan
from llmx.executor.bound import BoundOps
from llmx.program.ops import Model, Program
from llmx.record import record
from llmx_tpu.kernel import Array, Call
from llmx_tpu.pages import Held
from llmx_tpu.repeated import Entry, Place, Run, runs
from llmx_tpu.rows import Bucket, Rows

__all__ = ["Piece", "TracedProgram"]


@record
class Piece:
    """An op, or a fused run of ops, with its kernel's call. Its weights are the packed ones of the same index."""

    first: int
    count: int
    call: Call
    provider: str
    alike: Hashable = None  # equal where kernel, attributes and the shapes of weights are equal


class TracedProgram:
    """The functions `body`, `pick` and `head`. Raises ProgramError for a head that reads more of the body than the rows in its input."""

    def __init__(self, model: Model, pieces: Sequence[Piece], plan: KVPlan, *, interpret: bool) -> None:
        program = model.programs["main"]
        self._inputs = {name: value.id for name, value in program.inputs.items()}
        self._results = {name: value.id for name, value in program.outputs().items()}
        self._groups = {name: index for index, group in enumerate(plan.groups) for name in group.need.states}
        self._offsets = {name: place * group.num_blocks for group in plan.groups for place, name in enumerate(group.need.states)}
        self._interpret = interpret
        self._trees: dict[int, Any] = {}  # of packed weights of repeated blocks
        body: list[Entry] = []
        self._picks: list[BoundOps] = []
        self._head: list[BoundOps] = []
        head, late = self._inputs["head"], {self._inputs["head"]}
        for index, piece in enumerate(pieces):
            one = BoundOps.of(program, piece.first, piece.count, partial(_call, piece.call, index), piece.provider)
            early = [i for i in one.ins if i is not None and i not in late]
            if len(early) == sum(i is not None for i in one.ins):
                body.append(Entry(index, one, program.ops[piece.first : piece.first + piece.count], piece.alike))
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
        needed = self._sources | {i for i in self._results.values() if i not in late}
        self._runs = runs(body, frozenset(needed))
        self._read = needed | {i for run in self._runs for entry in run.blocks[0] for i in entry.one.ins if i is not None}
        self._sections = _sections(program)

    @property
    def results(self) -> tuple[str, ...]:
        """Named results that do not depend on head rows."""
        return tuple(sorted(name for name, i in self._results.items() if i not in self._late))

    def _rows(self, inputs: Mapping[str, Any], pages: Held, sizes: dict[str, int]) -> Rows:
        fields = {name: value for name, value in inputs.items() if name not in ("ids", "token_types")}
        return Rows(**fields, sizes=sizes, pages=pages, groups=self._groups, offsets=self._offsets, interpret=self._interpret)

    def body(self, bucket: Bucket, packed: Mapping[str, Any], pages: Held, inputs: Mapping[str, Any]) -> tuple[Held, dict[str, dict[Any, Array]]]:
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
        for number, run in enumerate(self._runs):
            if len(run.blocks) == 1:
                for entry in run.blocks[0]:
                    entry.one.run(_Tracing(rows, packed["alone"]), values)
            else:
                self._scan(run, packed["runs"][number], rows, values)
        return rows.pages, {
            "values": {i: values[i] for i in sorted(self._sources)},
            "results": {name: values[self._results[name]] for name in self.results},
        }

    def _scan(self, run: Run, packed: Mapping[str, Any], rows: Rows, values: dict[int, Array]) -> None:
        """The blocks of a run, one after the other, by one loop: values and pages go round, weights and offsets of pages come block by block."""
        block, count = run.blocks[0], len(run.blocks)
        places = {place: i for i, place in run.carried.items()}
        last = [(run.output(count - 1, place), place) for place in _outputs(block) if run.output(count - 1, place) in self._read]
        extra = [place for _, place in last if place not in places]
        names = [entry.states for entry in block]
        offsets = [[jnp.array([self._offsets[b[i].states[k]] for b in run.blocks], jnp.int32) for k in range(len(names[i]))] for i in range(len(block))]

        def turn(carry: Any, given: Any) -> Any:
            inward, _, pages = carry
            stacked, of_block = given
            moved = {name: offset for of_entry, found in zip(names, of_block, strict=True) for name, offset in zip(of_entry, found, strict=True)}
            own = replace(rows, pages=list(pages), offsets={**self._offsets, **moved})
            known = {**values, **dict(zip(places.values(), inward, strict=True))}
            tracing = _Tracing(own, _weights(block, stacked, packed["shared"], self._trees))
            for entry in block:
                entry.one.run(tracing, known)
            return ([known[run.output(0, p)] for p in places], [known[run.output(0, p)] for p in extra], own.pages), None

        inward = [values[i] for i in places.values()]
        shapes = [block[p[0]].one.outs[p[1]] for p in extra]
        zeros = [jnp.zeros([rows.size(d) for d in v.shape], jnp.int32 if v.dtype == "i32" else jnp.float32) for v in shapes]
        (inward, outward, pages), _ = jax.lax.scan(turn, (inward, zeros, rows.pages), (packed["stacked"], offsets))
        rows.pages = list(pages)
        found = dict(zip([*places, *extra], [*inward, *outward], strict=True))
        values.update({i: found[place] for i, place in last})

    def arrange(self, packed: Sequence[Any]) -> dict[str, Any]:
        """Packed weights of all pieces as the functions take them: of repeated blocks what differs is stacked, what is one array stays so."""
        runs_of: dict[int, Any] = {}
        repeated: set[int] = set()
        for number, run in enumerate(self._runs):
            if len(run.blocks) == 1:
                continue
            stacked: list[dict[int, Array]] = []
            shared: list[dict[int, Array]] = []
            for entries in zip(*run.blocks, strict=True):
                leaves, trees = zip(*(jax.tree.flatten(packed[entry.index]) for entry in entries), strict=True)
                self._trees[entries[0].index] = trees[0]
                same = [all(leaf is of_first for leaf in of_all) for of_first, of_all in zip(leaves[0], zip(*leaves, strict=True), strict=True)]
                shared.append({k: leaf for k, leaf in enumerate(leaves[0]) if same[k]})
                stacked.append({k: jnp.stack(of_all) for k, of_all in enumerate(zip(*leaves, strict=True)) if not same[k]})
                repeated |= {entry.index for entry in entries}
            runs_of[number] = {"stacked": stacked, "shared": shared}
        return {"runs": runs_of, "alone": {i: tree for i, tree in enumerate(packed) if i not in repeated}}

    def pick(self, values: Mapping[int, Array], index: Array) -> list[Array]:
        """What the head reads of the rows `index` [R] of the body's values."""
        known = {**values, self._inputs["head"]: index}
        sizes = {"R": index.shape[0]}
        for one in self._picks:
            one.run(_Tracing(_Sizes(sizes), {}), known)
        return [known[i] for i in self._picked]

    def head(self, packed: Mapping[str, Any], picked: Sequence[Array]) -> dict[str, Array]:
        """The named results of picked rows [R, ...]."""
        values = dict(zip(self._picked, picked, strict=True))
        tracing = _Tracing(_Sizes({"R": picked[0].shape[0]}), packed["alone"])
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
    packed: Mapping[Any, Any]
    sizes: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = self.rows.sizes

    def size(self, dim: Any) -> int:
        """A dimension as a number."""
        found: int = self.rows.size(dim)
        return found


def _call(call: Call, index: int, tracing: _Tracing, *inputs: Array) -> Any:
    return call(tracing.rows, tracing.packed[index] if tracing.packed else {}, *inputs)


def _outputs(block: Sequence[Entry]) -> Iterator[Place]:
    yield from ((i, k) for i, entry in enumerate(block) for k in range(len(entry.one.outs)))


def _weights(block: Sequence[Entry], stacked: Any, shared: Any, trees: Mapping[int, Any]) -> dict[int, Any]:
    """Packed weights of one block, by piece."""
    found = {}
    for entry, own, same in zip(block, stacked, shared, strict=True):
        leaves = {**own, **same}
        found[entry.index] = jax.tree.unflatten(trees[entry.index], [leaves[k] for k in range(len(leaves))])
    return found


def _sections(program: Program) -> int:
    """Rows of the input positions; 0 where it has no such axis (text: all are equal)."""
    value = program.inputs.get("positions")
    return value.shape[0] if value is not None and len(value.shape) == 2 and isinstance(value.shape[0], int) else 0

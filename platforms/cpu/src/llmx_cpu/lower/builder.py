"""TapeBuilder: collects the records of a tape. Lowering functions get one and an op, and append.

Values between ops are f32 rows. A value that only looks at another one (view, output) shares its storage; storage is used
again after the last op that reads it, except what head-row ops read of token rows: those run again for every head block.
"""

from __future__ import annotations

import ctypes as C
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from llmx.errors import ProgramError
from llmx.program.ops import Dim, Part, Value, WeightRef
from llmx_cpu.native import OpRecord, PartRecord, Tape, ValueRecord

__all__ = ["HEAD_ROWS", "KINDS", "BuiltTape", "TapeBuilder", "Weights", "row_width", "rows_symbol", "size"]

HEAD_ROWS = 64  # csrc/tape.h
KINDS = {
    name: i
    for i, name in enumerate(
        "embed linear norm act act_mul binary unary softmax qkv rope kv_write attention rows split concat copy position_scale mlp"
        " hidden keep guess collective".split()
    )
}


class Weights(Protocol):
    """Where lowering gets handles of weights from; each tensor is packed once, whatever number of ops use it."""

    def weight(self, ref: WeightRef) -> int:
        """Handle of a packed matrix [rows, cols]."""
        ...

    def vector(self, ref: WeightRef, offset: float = 0.0) -> int:
        """Handle of a vector, `offset` added."""
        ...

    def constant(self, key: Any, make: Any) -> int:
        """Handle of the float32 array that make() gives, made once per key."""
        ...


def rows_symbol(value: Value) -> str:
    """Name of the leading symbolic axis: T or R. Raises ProgramError for another one."""
    name = getattr(value.shape[0], "name", None) if value.shape else None
    if name not in ("T", "R"):
        raise ProgramError(f"the native executor has values with rows T or R; value {value.id} has shape {value.shape}")
    return str(name)


def size(dim: Dim) -> int:
    """A size that must be a number."""
    if not isinstance(dim, int):
        raise ProgramError(f"size {dim} is not a number: the native executor has one symbolic axis, the first")
    return dim


def row_width(value: Value) -> int:
    """Elements per token or head row."""
    return prod(size(d) for d in value.shape[1:])


@dataclass(slots=True)
class BuiltTape:
    """The struct and the arrays that it points into, which must outlive it."""

    struct: Any
    ops: Any
    values: Any
    parts: Any
    names: dict[int, int]  # Program value id -> tape value
    targets: tuple[str, ...]  # per part, the name that adapters use
    tables: frozenset[int] = frozenset()  # parts that are embeddings


@dataclass(slots=True)
class TapeBuilder:
    """Records so far. max_positions: rows of position tables. drafts: the Program is a drafter's, whose results are guesses and hidden rows."""

    weights: Weights
    states: dict[str, int]  # state name -> index of its record
    inputs: dict[int, str]  # value id -> input name
    max_positions: int
    uses: dict[int, int]  # value id -> ops that read it
    drafts: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    values: list[tuple[int, str]] = field(default_factory=list)  # (width, T or R)
    storage: dict[int, int] = field(default_factory=dict)  # Program value id -> tape value

    def new_value(self, width: int, rows: str) -> int:
        """A tape value of `width` floats per row."""
        self.values.append((width, rows))
        return len(self.values) - 1

    def define(self, value: Value) -> int:
        """Storage for a result of an op."""
        self.storage[value.id] = self.new_value(row_width(value), rows_symbol(value))
        return self.storage[value.id]

    def alias(self, value: Value, of: Value) -> None:
        """`value` is the same floats as `of`."""
        self.storage[value.id] = self.read(of)

    def read(self, value: Value | None) -> int:
        """Tape value of an input of an op; -1 for None."""
        if value is None:
            return -1
        if value.id not in self.storage:
            raise ProgramError(f"value {value.id} is read before it is made (or is an input that this op cannot read)")
        return self.storage[value.id]

    def input_name(self, value: Value | None) -> str:
        """Name of the Program input that a value is."""
        return "" if value is None else self.inputs.get(value.id, "")

    def add_part(self, part: Part, column: int) -> int:
        """One weight of a linear, or of an embedding; its place."""
        bias = -1 if part.bias is None else self.weights.vector(part.bias)
        self.parts.append((self.weights.weight(part.weight), bias, column))
        self.targets.append(part.target)
        return len(self.parts) - 1

    def emit(self, kind: str, rows: str, width: int, ins: list[int], outs: list[int], mult: int = 1, **fields: Any) -> None:
        """Append a record. fields: w, i, f as lists."""
        self.records.append({"kind": KINDS[kind], "rows": 0 if rows == "T" else 1, "mult": mult, "width": width, "ins": ins, "outs": outs, **fields})

    def finish(self, result: Value, max_tokens: int, max_requests: int, vocab: int) -> BuiltTape:
        """The tape with storage assigned. result: what each head row gives, logits or another row."""
        offsets, total = self._place(self.storage[result.id], max_tokens)
        ops, values, parts = (OpRecord * len(self.records))(), (ValueRecord * len(self.values))(), (PartRecord * max(1, len(self.parts)))()
        for record, to in zip(self.records, ops, strict=True):
            _fill(to, record)
        for i, (width, _) in enumerate(self.values):
            values[i].offset, values[i].width = offsets[i], width
        for i, (weight, bias, column) in enumerate(self.parts):
            parts[i].weight, parts[i].bias, parts[i].column = weight, bias, column
        products = [r for r in self.records if r["kind"] in (KINDS["linear"], KINDS["mlp"])]
        widths = [r["i"][2] for r in products] + [r["i"][6] for r in products if r["kind"] == KINDS["mlp"]]
        struct = Tape(
            ops=C.addressof(ops), values=C.addressof(values), parts=C.addressof(parts), n_ops=len(ops), n_values=len(values), n_parts=len(self.parts),
            logits=self.storage[result.id], arena_floats=total, max_tokens=max_tokens, max_requests=max_requests, vocab=vocab,
            act_mult=max((r["mult"] for r in products), default=1), act_width=max(widths, default=32), head_width=row_width(result),
        )  # fmt: skip
        tables = frozenset(r["i"][2] - 1 for r in self.records if r["kind"] == KINDS["embed"] and r["i"][2:] > [0])
        return BuiltTape(struct, ops, values, parts, dict(self.storage), tuple(self.targets), tables)

    def _place(self, logits: int, max_tokens: int) -> tuple[list[int], int]:
        """Offset of every value in floats, and the size of the arena. A freed place goes to the next value that fits."""
        last: dict[int, int] = {logits: len(self.records)}
        for at, record in enumerate(self.records):
            for value in record["ins"]:
                crosses = value >= 0 and self.values[value][1] == "T" and record["rows"] == 1
                last[value] = len(self.records) if crosses else max(last.get(value, -1), at)
        free: list[tuple[int, int]] = []  # (floats, offset)
        offsets, total, live = [0] * len(self.values), 0, dict[int, tuple[int, int]]()
        for at, record in enumerate(self.records):
            for value in record["outs"]:
                if value < 0:
                    continue
                width, rows = self.values[value]
                size = -(-width * (max_tokens if rows == "T" else HEAD_ROWS) // 16) * 16
                fits = sorted(place for place in free if place[0] >= size)
                if fits:
                    free.remove(fits[0])
                    place = fits[0]
                else:
                    place = (size, total)
                    total += size
                offsets[value], live[value] = place[1], place
                last.setdefault(value, at)
            done = [v for v in live if last[v] <= at]
            free.extend(live.pop(v) for v in done)
        return offsets, total


def _fill(to: Any, record: dict[str, Any]) -> None:
    to.kind, to.rows, to.mult, to.width = record["kind"], record["rows"], record["mult"], record["width"]
    for name, size in (("ins", 4), ("outs", 4), ("w", 6)):
        given = record.get(name, [])
        getattr(to, name)[:] = [*given, *([-1] * (size - len(given)))]
    for name, size in (("i", 12), ("f", 4)):
        given = record.get(name, [])
        getattr(to, name)[:] = [*given, *([0] * (size - len(given)))]

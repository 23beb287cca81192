"""What shape rules ask of an op: inputs, ranks, weights. Every check raises ProgramError that names the op and the value at fault."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import NoReturn

from llmx.errors import ProgramError
from llmx.program.ops import Dim, DType, Op, Part, Sym, SymDiv, Value

__all__ = [
    "Shapes",
    "arity",
    "divide",
    "elements",
    "fail",
    "index_input",
    "last",
    "need_part",
    "one_part",
    "parts_of",
    "roles",
    "same",
    "show",
    "states_between",
    "value",
]

Shapes = tuple[tuple[tuple[Dim, ...], DType], ...]


def fail(op: Op, why: str) -> NoReturn:
    """Raises ProgramError that names the op's kind and place."""
    raise ProgramError(f"{op.kind} in {op.region}: {why}")


def show(shape: Sequence[Dim]) -> str:
    """Printable shape, e.g. "[T, 576]"."""
    return "[" + ", ".join(str(d) for d in shape) + "]"


def arity(op: Op, low: int, high: int | None = None) -> None:
    """Checks that the op has low..high inputs (None: exactly low)."""
    high = low if high is None else high
    if not low <= len(op.ins) <= high:
        want = str(low) if low == high else f"{low} to {high}"
        fail(op, f"takes {want} inputs, got {len(op.ins)}")


def value(op: Op, index: int, name: str, rank: int | None = None) -> Value:
    """The input at `index`, which must be present, not i32, and of that rank (None: 1 or more)."""
    v = op.ins[index] if index < len(op.ins) else None
    if v is None:
        fail(op, f"input {index} ({name}) is missing")
    if v.dtype == "i32":
        fail(op, f"input {index} ({name}) is i32; rows of numbers are wanted")
    if (rank is not None and len(v.shape) != rank) or not v.shape:
        fail(op, f"input {index} ({name}) has shape {show(v.shape)}; rank {rank or 'of at least 1'} is wanted")
    return v


def index_input(op: Op, index: int, name: str, rows: Dim | None = None, planes: int = 0) -> Value:
    """The i32 input at `index`: shape [rows], or [planes, rows] when planes > 0."""
    v = op.ins[index] if index < len(op.ins) else None
    if v is None:
        fail(op, f"input {index} ({name}) is missing")
    if v.dtype != "i32":
        fail(op, f"input {index} ({name}) is {v.dtype}; i32 is wanted")
    lead: tuple[Dim, ...] = (planes,) if planes else ()
    want = None if rows is None else (*lead, rows)
    if (want is not None and v.shape != want) or len(v.shape) != len(lead) + 1:
        fail(op, f"input {index} ({name}) has shape {show(v.shape)}; {show(want or (*lead, 'rows'))} is wanted")  # type: ignore[arg-type]
    return v


def last(op: Op, v: Value, name: str) -> int:
    """Size of the last axis, which must be a number."""
    size = v.shape[-1]
    if not isinstance(size, int):
        fail(op, f"{name} has shape {show(v.shape)}; the last axis must be a number")
    return size


def same(op: Op, what: str, got: Sequence[Dim], want: Sequence[Dim]) -> None:
    """Checks that a shape is the one wanted."""
    if tuple(got) != tuple(want):
        fail(op, f"{what} has shape {show(got)}; {show(want)} is wanted")


def roles(op: Op, required: Sequence[str] = (), optional: Sequence[str] = ()) -> None:
    """Checks which weight roles the op has."""
    for role in required:
        if not op.weights.get(role):
            fail(op, f"weight role {role!r} is missing")
    for role in op.weights:
        if role not in required and role not in optional:
            known = ", ".join([*required, *optional]) or "none"
            fail(op, f"weight role {role!r} is unknown; known: {known}")


def parts_of(op: Op, role: str, count: int | None = None) -> tuple[Part, ...]:
    """The Parts of a role; count: how many there must be."""
    parts = op.weights.get(role, ())
    if count is not None and len(parts) != count:
        fail(op, f"weight role {role!r} has {len(parts)} parts; {count} wanted")
    return parts


def one_part(op: Op, role: str, shape: tuple[int, ...], bias: tuple[int, ...] | None = None) -> Part | None:
    """The single Part of a role with that weight shape, or None where the role is absent. bias: its shape; None: no bias is allowed."""
    if role not in op.weights:
        return None
    (part,) = parts_of(op, role, 1)
    need_part(op, role, part, shape, bias)
    return part


def need_part(op: Op, role: str, part: Part, shape: tuple[int, ...], bias: tuple[int, ...] | None = None) -> None:
    """Checks the shapes of one Part."""
    if part.weight.shape != shape:
        fail(op, f"{role} {part.target}: weight {part.weight.name} has shape {show(part.weight.shape)}; {show(shape)} is wanted")
    if part.bias is not None and bias is None:
        fail(op, f"{role} {part.target}: has a bias {part.bias.name}; none is allowed here")
    if part.bias is not None and part.bias.shape != bias:
        fail(op, f"{role} {part.target}: bias {part.bias.name} has shape {show(part.bias.shape)}; {show(bias or ())} is wanted")


def states_between(op: Op, low: int, high: int) -> None:
    """Checks how many States the op names."""
    if not low <= len(op.states) <= high:
        want = str(low) if low == high else f"{low} to {high}"
        fail(op, f"names {len(op.states)} states ({', '.join(op.states) or 'none'}); {want} wanted")


def divide(op: Op, size: Dim, by: int) -> Dim:
    """A size divided exactly by a number."""
    if by == 1:
        return size
    if isinstance(size, Sym):
        return SymDiv(size, by)
    if isinstance(size, SymDiv):
        return SymDiv(size.sym, size.by * by)
    if size % by:
        fail(op, f"size {size} is not a multiple of {by}")
    return size // by


def elements(op: Op, shape: Sequence[Dim]) -> tuple[str, Fraction]:
    """Number of elements as (symbol, factor). At most one axis may be symbolic."""
    symbols = [d for d in shape if not isinstance(d, int)]
    if len(symbols) > 1:
        fail(op, f"shape {show(shape)} has more than one symbolic axis")
    count = Fraction(prod(d for d in shape if isinstance(d, int)))
    if not symbols:
        return "", count
    (s,) = symbols
    return (s.name, count) if isinstance(s, Sym) else (s.sym.name, count / s.by)

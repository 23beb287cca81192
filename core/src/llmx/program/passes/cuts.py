"""Cuts: which share of a model's heads and columns one rank has, and its weights cut to that share.

A cut is a half-open range. Ranges are as equal as borders allow, and all ranks together have every element once.
"""

from __future__ import annotations

from dataclasses import replace

from llmx.errors import ProgramError
from llmx.program.ops import Part, Transform, WeightRef
from llmx.record import record

__all__ = ["HeadShare", "PartCut", "Share", "cut_columns", "cut_part", "head_share", "share"]


@record
class Share:
    """Elements [start, stop) of an axis."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Elements of this share."""
        return self.stop - self.start

    def times(self, factor: int) -> Share:
        """The same share of an axis of `factor` elements per element."""
        return Share(self.start * factor, self.stop * factor)


@record
class PartCut:
    """What one rank has of a linear's Part: some output rows, or the columns of a share of its input."""

    rows: Share | None = None
    columns: Share | None = None


@record
class HeadShare:
    """Query heads and key-value heads of one rank."""

    q: Share
    kv: Share


def share(total: int, unit: int, rank: int, size: int, what: str) -> Share:
    """Share of `total` elements whose borders are multiples of `unit`. Raises ProgramError, naming `what`, where a rank would have none."""
    units = total // unit
    if total % unit or units < size:
        blocks = f" in blocks of {unit}" if unit > 1 else ""
        raise ProgramError(f"{what} ({total}{blocks}) cannot be shared by {size} ranks")
    return Share(rank * units // size * unit, (rank + 1) * units // size * unit)


def head_share(q_heads: int, kv_heads: int, unit: int, rank: int, size: int, what: str) -> HeadShare:
    """Heads of one rank: whole groups, `unit` key-value heads at a time; where there are fewer key-value heads than ranks, each has several owners.

    Raises ProgramError, naming `what`, where that does not work out.
    """
    group = q_heads // kv_heads
    if kv_heads >= size or size % kv_heads or group % (size // kv_heads) or unit > 1:
        kv = share(kv_heads, unit, rank, size, f"{what}: its {q_heads} query and {kv_heads} key-value heads")
        return HeadShare(kv.times(group), kv)
    owners = size // kv_heads
    q = Share(rank * q_heads // size, (rank + 1) * q_heads // size)
    return HeadShare(q, Share(rank // owners, rank // owners + 1))


def cut_part(part: Part, rows: Share) -> Part:
    """A Part with these output rows alone, bias included."""
    bias = None if part.bias is None else _cut_rows(part.bias, rows)
    return replace(part, weight=_cut_rows(part.weight, rows), bias=bias, rows=rows.size)


def cut_columns(part: Part, columns: Share, *, bias: bool) -> Part:
    """A Part that reads these elements of its input alone. bias: whether this rank adds it."""
    return replace(part, weight=_cut_columns(part.weight, columns), bias=part.bias if bias else None)


def _cut_rows(ref: WeightRef, rows: Share) -> WeightRef:
    """The rank's rows. The cut goes before what copies, so that a rank reads no more of the file than it needs."""
    before, last = ref.transforms[:-1], ref.transforms[-1] if ref.transforms else None
    shape = (rows.size, *ref.shape[1:])
    if last is not None and last.name == "slice_rows":
        inner = _cut_rows(replace(ref, transforms=before), Share(last.args[0] + rows.start, last.args[0] + rows.stop))
        return replace(inner, shape=shape)
    if last is not None and last.name == "permute_rows":  # whole heads move alike
        head = ref.shape[0] // last.args[0]
        inner = _cut_rows(replace(ref, transforms=before), rows)
        return replace(inner, shape=shape, transforms=(*inner.transforms, Transform("permute_rows", (rows.size // head,))))
    if last is not None and last.name == "transpose":
        cut = Transform("slice_cols", (rows.start, rows.stop))
        return replace(ref, shape=shape, transforms=(*before, cut, last))
    return replace(ref, shape=shape, transforms=(*ref.transforms, Transform("slice_rows", (rows.start, rows.stop))))


def _cut_columns(ref: WeightRef, columns: Share) -> WeightRef:
    shape = (*ref.shape[:-1], columns.size)
    if ref.transforms and ref.transforms[-1].name == "transpose":
        cut = Transform("slice_rows", (columns.start, columns.stop))
        return replace(ref, shape=shape, transforms=(*ref.transforms[:-1], cut, ref.transforms[-1]))
    return replace(ref, shape=shape, transforms=(*ref.transforms, Transform("slice_cols", (columns.start, columns.stop))))

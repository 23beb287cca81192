"""Lowering of rows, products, norms, elementwise and shape ops."""

from __future__ import annotations

from math import prod

from llmx.errors import ProgramError
from llmx.executor import HIDDEN, KEPT
from llmx.program.attrs import NormAttrs
from llmx.program.ops import Op, Value
from llmx_cpu.lower.builder import TapeBuilder, row_width, rows_symbol, size

__all__ = [
    *("act", "act_mul", "binary", "collective", "concat", "copy_view", "embed", "hidden_input"),
    *("linear", "norm", "output", "pos_embed", "rows", "softmax", "split", "unary"),
]

ACTS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "tanh", "sigmoid")  # csrc/rowwise.h
NORMS = ("rms", "layer", "l2")
UNARY = ("scale", "softcap", "clip")
BINARY = ("add", "mul")
COLLECTIVES = ("all_reduce", "all_gather")  # csrc/tape.h: i0 of LLMX_COLLECTIVE
MAX_PIECES = 4  # csrc/tape.h: LlmxOp.in, LlmxOp.out
_EMBEDDED = {"ids": 0, "token_types": 2}  # csrc/tape.h: i0 of LLMX_EMBED


def _x(op: Op, index: int = 0) -> Value:
    value = op.ins[index] if index < len(op.ins) else None
    if value is None:
        raise ProgramError(f"{op.kind} in {op.region}: input {index} is missing")
    return value


def _mult(value: Value) -> tuple[int, int]:
    """(rows per token row, width of the last axis)."""
    return prod(size(d) for d in value.shape[1:-1]), size(value.shape[-1])


def embed(b: TapeBuilder, op: Op) -> None:
    """Rows of a table by token id, or by token type."""
    source = b.input_name(op.ins[0])
    if source not in _EMBEDDED:
        raise ProgramError(f"embed in {op.region}: the native executor reads the Program inputs {' and '.join(map(repr, _EMBEDDED))} only")
    (part,) = op.weights["w"]
    handle, at = b.weights.weight(part.weight), b.add_part(part, 0)
    b.emit("embed", "T", row_width(op.outs[0]), [], [b.define(op.outs[0])], w=[handle], f=[op.attrs.scale], i=[_EMBEDDED[source], 0, 1 + at])


def pos_embed(b: TapeBuilder, op: Op) -> None:
    """Rows of a table by position."""
    if b.input_name(op.ins[0]) != "positions":
        raise ProgramError(f"pos_embed in {op.region}: the native executor reads the Program input 'positions' only")
    table = op.weights["w"][0].weight
    if table.shape[0] < b.max_positions + op.attrs.offset:
        raise ProgramError(
            f"pos_embed in {op.region}: the table has {table.shape[0]} rows for max_model_len {b.max_positions} + offset {op.attrs.offset}: lower max_model_len"
        )
    b.emit("embed", "T", row_width(op.outs[0]), [], [b.define(op.outs[0])], w=[b.weights.weight(table)], f=[1.0], i=[1, op.attrs.offset])


def linear(b: TapeBuilder, op: Op) -> None:
    """One record over the op's parts."""
    x, parts = _x(op), op.weights["w"]
    first, column = len(b.parts), 0
    for part in parts:
        b.add_part(part, column)
        column += part.rows
    mult, width = _mult(x)
    b.emit("linear", rows_symbol(x), column, [b.read(x)], [b.define(op.outs[0])], mult, i=[first, len(parts), width])


def norm(b: TapeBuilder, op: Op) -> None:
    """rms, layer or l2 norm of the last axis, gated or not."""
    a: NormAttrs = op.attrs
    x = _x(op)
    mult, width = _mult(x)
    weight = bias = -1
    if "w" in op.weights:
        (part,) = op.weights["w"]
        weight = b.weights.vector(part.weight, a.offset)
        bias = -1 if part.bias is None else b.weights.vector(part.bias)
    gate = b.read(op.ins[1]) if a.gated else -1
    fields = [NORMS.index(a.kind), a.groups, int(a.gate_after), int(a.eps_floor)]
    b.emit("norm", rows_symbol(x), width, [b.read(x), gate], [b.define(op.outs[0])], mult, w=[weight, bias], i=fields, f=[a.eps])


def act(b: TapeBuilder, op: Op) -> None:
    """An activation of every element."""
    x = _x(op)
    b.emit("act", rows_symbol(x), row_width(x), [b.read(x)], [b.define(op.outs[0])], i=[ACTS.index(op.attrs.kind)])


def act_mul(b: TapeBuilder, op: Op) -> None:
    """act(gate) * up."""
    x = _x(op)
    mult, width = _mult(x)
    b.emit("act_mul", rows_symbol(x), width // 2, [b.read(x)], [b.define(op.outs[0])], mult, i=[ACTS.index(op.attrs.kind)])


def binary(b: TapeBuilder, op: Op) -> None:
    """add and mul of equal shapes, with a learned row, or with one number per row."""
    x = _x(op)
    kind, (mult, width) = BINARY.index(op.kind), _mult(x)
    if op.weights:
        row = b.weights.vector(op.weights["w"][0].weight)
        b.emit("binary", rows_symbol(x), width, [b.read(x), -1], [b.define(op.outs[0])], mult, i=[kind, 1], w=[row])
        return
    y = _x(op, 1)
    form = 0 if y.shape == x.shape else 2
    if form == 2 and y.shape != (*x.shape[:-1], 1):
        raise ProgramError(f"{op.kind} in {op.region}: shapes {x.shape} and {y.shape}: the native executor broadcasts the last axis only")
    b.emit("binary", rows_symbol(x), width, [b.read(x), b.read(y)], [b.define(op.outs[0])], mult, i=[kind, form])


def unary(b: TapeBuilder, op: Op) -> None:
    """scale, softcap, clip."""
    x = _x(op)
    b.emit("unary", rows_symbol(x), row_width(x), [b.read(x)], [b.define(op.outs[0])], i=[UNARY.index(op.kind)], f=[op.attrs.value])


def softmax(b: TapeBuilder, op: Op) -> None:
    """softmax of the last axis."""
    x = _x(op)
    mult, width = _mult(x)
    b.emit("softmax", rows_symbol(x), width, [b.read(x)], [b.define(op.outs[0])], mult)


def rows(b: TapeBuilder, op: Op) -> None:
    """The head rows of a value."""
    x = _x(op)
    if b.input_name(op.ins[1]) != "head":
        raise ProgramError(f"rows in {op.region}: the native executor reads the Program input 'head' only")
    b.emit("rows", "R", row_width(x), [b.read(x)], [b.define(op.outs[0])])


def collective(b: TapeBuilder, op: Op) -> None:
    """Sums and rows of all ranks."""
    if op.attrs.op not in COLLECTIVES:
        raise ProgramError(f"collective {op.attrs.op!r} in {op.region}: the native executor has {' and '.join(COLLECTIVES)}")
    x, out = _x(op), op.outs[0]
    b.emit("collective", rows_symbol(x), row_width(out), [b.read(x)], [b.define(out)], i=[COLLECTIVES.index(op.attrs.op), op.attrs.size])


def _few(op: Op, pieces: int) -> None:
    if pieces > MAX_PIECES:
        raise ProgramError(f"{op.kind} in {op.region}: {pieces} pieces; the native executor takes up to {MAX_PIECES}: do it in several ops")


def split(b: TapeBuilder, op: Op) -> None:
    """Pieces of the last axis."""
    _few(op, len(op.outs))
    x = _x(op)
    mult, width = _mult(x)
    b.emit("split", rows_symbol(x), width, [b.read(x)], [b.define(v) for v in op.outs], mult, i=list(op.attrs.sizes))


def concat(b: TapeBuilder, op: Op) -> None:
    """Values joined along the last axis."""
    _few(op, len(op.ins))
    x = _x(op)
    mult, _ = _mult(x)
    sizes = [size(v.shape[-1]) for v in op.ins if v is not None]
    b.emit("concat", rows_symbol(x), sum(sizes), [b.read(v) for v in op.ins], [b.define(op.outs[0])], mult, i=sizes)


def copy_view(b: TapeBuilder, op: Op) -> None:
    """The same floats under another shape: no record."""
    rows_symbol(op.outs[0])
    b.alias(op.outs[0], _x(op))


def hidden_input(b: TapeBuilder, value: Value) -> None:
    """The input `hidden` of a drafter: rows that were kept."""
    b.emit("hidden", rows_symbol(value), row_width(value), [], [b.define(value)])


def output(b: TapeBuilder, op: Op) -> None:
    """A named result. Rows for a drafter are kept; a drafter's logits become guesses; for others there is no record."""
    x, name = _x(op), op.attrs.name
    if name == KEPT or (b.drafts and name == HIDDEN):
        b.emit("keep", rows_symbol(x), row_width(x), [b.read(x)], [])
    elif b.drafts:
        ids = b.weights.vector(op.weights["ids"][0].weight) if "ids" in op.weights else -1
        b.emit("guess", rows_symbol(x), row_width(x), [b.read(x)], [], w=[ids], i=[int(name.removeprefix("logits").lstrip(".") or 0)])
    else:
        b.read(x)

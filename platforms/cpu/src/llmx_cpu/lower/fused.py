"""Lowering of fusions: runs of ops that one record computes, with the bits of the ops alone.

A fusion was chosen by kinds; whether the values really flow from one op into the next is seen here. Where they do not (a
normed row that two ops read, an `add` of something else) the ops are lowered one by one.
"""

from __future__ import annotations

from typing import Any

from llmx.executor.op_weights import AS_BLOCKS
from llmx.program.ops import Op, Value
from llmx_cpu.lower import basic
from llmx_cpu.lower.builder import TapeBuilder, row_width, rows_symbol
from llmx_cpu.native import WEIGHT_TYPES

__all__ = ["linear_add", "mlp", "norm_linear"]

_BLOCK = 32  # csrc/linear.h


def _only(b: TapeBuilder, op: Op, then: Op) -> bool:
    """`then` is the only reader of op's result."""
    return b.uses.get(op.outs[0].id, 0) == 1 and any(v is not None and v.id == op.outs[0].id for v in then.ins)


def _residual(b: TapeBuilder, product: Op, add: Op) -> Value | None:
    """The other addend, when `add` adds the product to a value of its shape."""
    x, y = add.ins[0], add.ins[1] if len(add.ins) > 1 else None
    if x is None or y is None or x.shape != y.shape or not _only(b, product, add) or x.id == y.id:
        return None
    return x if y.id == product.outs[0].id else y


def _norm_fields(b: TapeBuilder, op: Op) -> tuple[list[int], list[int], list[float]]:
    """(w, [kind + 1, eps_floor], f) of a plain norm."""
    weight = bias = -1
    if "w" in op.weights:
        (part,) = op.weights["w"]
        weight = b.weights.vector(part.weight, op.attrs.offset)
        bias = -1 if part.bias is None else b.weights.vector(part.bias)
    return [weight, bias], [basic.NORMS.index(op.attrs.kind) + 1, int(op.attrs.eps_floor)], [op.attrs.eps]


def _plain(norm: Op) -> bool:
    x = norm.ins[0]
    return norm.attrs.groups == 1 and not norm.attrs.gated and x is not None and len(x.shape) == 2


def _linear(b: TapeBuilder, x: Value, op: Op, norm: Op | None, residual: Value | None, out: Value) -> None:
    first, column = len(b.parts), 0
    for part in op.weights["w"]:
        b.add_part(part, column)
        column += part.rows
    w, kind, f = _norm_fields(b, norm) if norm is not None else ([], [0, 0], [])
    fields = [first, len(op.weights["w"]), row_width(x), *kind]
    b.emit("linear", rows_symbol(x), column, [b.read(x), b.read(residual)], [b.define(out)], i=fields, w=w, f=f)


def norm_linear(b: TapeBuilder, norm: Op, linear: Op) -> None:
    """norm, linear: rows are normed and quantised while they are in cache."""
    x = norm.ins[0]
    if x is not None and _plain(norm) and _only(b, norm, linear):
        _linear(b, x, linear, norm, None, linear.outs[0])
        return
    basic.norm(b, norm)
    basic.linear(b, linear)


def linear_add(b: TapeBuilder, linear: Op, add: Op) -> None:
    """linear, add: the residual is added where the product is stored."""
    x = linear.ins[0]
    residual = _residual(b, linear, add)
    if x is not None and residual is not None and len(x.shape) == 2:
        _linear(b, x, linear, None, residual, add.outs[0])
        return
    basic.linear(b, linear)
    basic.binary(b, add)


def mlp(b: TapeBuilder, norm: Op, gate_up: Op, act_mul: Op, down: Op, add: Op) -> None:
    """norm, linear (gate, up), act_mul, linear (down), add: the activated rows never leave cache."""
    x, residual = norm.ins[0], _residual(b, down, add)
    flows = x is not None and _plain(norm) and residual is not None and all(
        _only(b, one, then) for one, then in ((norm, gate_up), (gate_up, act_mul), (act_mul, down))
    )  # fmt: skip
    if not flows or not _gated_shape(gate_up, down):
        norm_linear(b, norm, gate_up)
        basic.act_mul(b, act_mul)
        linear_add(b, down, add)
        return
    assert x is not None and residual is not None
    first, rows = len(b.parts), gate_up.weights["w"][0].rows
    for part, column in zip((*gate_up.weights["w"], *down.weights["w"]), (0, 0, 0), strict=True):
        b.add_part(part, column)
    w, kind, f = _norm_fields(b, norm)
    fields = [first, 3, row_width(x), *kind, basic.ACTS.index(act_mul.attrs.kind), rows]
    b.emit("mlp", rows_symbol(x), row_width(add.outs[0]), [b.read(x), b.read(residual)], [b.define(add.outs[0])], i=fields, w=w, f=f)


def _gated_shape(gate_up: Op, down: Op) -> bool:
    """One gate, one up, one down; whole blocks of columns."""
    parts: Any = gate_up.weights["w"]
    known = all(AS_BLOCKS.get(str(part.weight.quant), str(part.weight.quant)) in WEIGHT_TYPES for part in (*parts, *down.weights["w"]))
    return known and len(parts) == 2 and len(down.weights["w"]) == 1 and parts[0].rows == parts[1].rows and parts[0].rows % _BLOCK == 0

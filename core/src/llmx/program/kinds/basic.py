"""Op kinds without a State: rows, norms, products, elementwise, shapes, results.

Shape letters: A rows (any leading axes), H width of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

from llmx.program.attrs import (
    ActAttrs,
    CollectiveAttrs,
    ConvAttrs,
    EmbedAttrs,
    HfModuleAttrs,
    LinearAttrs,
    NoAttrs,
    NormAttrs,
    OutputAttrs,
    PoolAttrs,
    PosEmbedAttrs,
    ReduceAttrs,
    ScalarAttrs,
    SplitAttrs,
    ViewAttrs,
)
from llmx.program.kinds.checks import (
    Shapes,
    arity,
    divide,
    elements,
    fail,
    index_input,
    last,
    need_part,
    one_part,
    parts_of,
    roles,
    same,
    show,
    states_between,
    value,
)
from llmx.program.ops import Dim, DType, Op, OpDef, Sym, Value

__all__ = ["basic_kinds"]

Fresh = Callable[[tuple[Dim, ...], DType], Value]


def _table(op: Op) -> int:
    """Width of the table of embed and pos_embed: role w, one Part [rows, width]."""
    roles(op, ["w"])
    (part,) = parts_of(op, "w", 1)
    if len(part.weight.shape) != 2:
        fail(op, f"table {part.weight.name} has shape {show(part.weight.shape)}; [rows, width] is wanted")
    need_part(op, "w", part, part.weight.shape)
    return part.weight.shape[1]


def _embed(op: Op) -> Shapes:
    arity(op, 1)
    rows = index_input(op, 0, "ids").shape[0]
    return (((rows, _table(op)), "act"),)


def _take(op: Op) -> Shapes:
    arity(op, 2)
    roles(op)
    x = value(op, 0, "x")
    index = index_input(op, 1, "index")
    return (((index.shape[0], *x.shape[1:]), x.dtype),)


def _merge_embeds(op: Op) -> Shapes:
    arity(op, 3)
    roles(op)
    x, cache = value(op, 0, "x", 2), value(op, 1, "cache", 2)
    index_input(op, 2, "index", x.shape[0])
    if cache.shape[1] != x.shape[1]:
        fail(op, f"cache rows are {cache.shape[1]} wide, x is {x.shape[1]}")
    return ((x.shape, x.dtype),)


def _norm(op: Op) -> Shapes:
    a: NormAttrs = op.attrs
    arity(op, 2 if a.gated else 1)
    roles(op, (), ["w"])
    x = value(op, 0, "x")
    width = last(op, x, "x")
    if a.groups < 1 or width % a.groups:
        fail(op, f"width {width} cannot be cut into {a.groups} groups")
    if a.gated:
        same(op, "gate", value(op, 1, "gate").shape, x.shape)
    one_part(op, "w", (width,), None if a.kind == "l2" else (width,))
    return ((x.shape, x.dtype),)


def _norm_steps(op: Op, fresh: Fresh) -> list[Op]:
    """A gated norm as act, mul and a plain norm; a plain one is a primitive and stays."""
    a: NormAttrs = op.attrs
    if not a.gated:
        return [op]
    x, z = op.ins
    assert x is not None and z is not None
    plain = NormAttrs(a.kind, a.eps, a.offset, a.groups, eps_floor=a.eps_floor)
    gate, mid = fresh(z.shape, z.dtype), fresh(x.shape, x.dtype)
    silu = Op("act", (z,), (gate,), ActAttrs("silu"), region=op.region)
    if a.gate_after:
        norm = Op("norm", (x,), (mid,), plain, op.weights, region=op.region)
        return [norm, silu, Op("mul", (mid, gate), op.outs, NoAttrs(), region=op.region)]
    mul = Op("mul", (x, gate), (mid,), NoAttrs(), region=op.region)
    return [silu, mul, Op("norm", (mid,), op.outs, plain, op.weights, region=op.region)]


def _linear(op: Op) -> Shapes:
    arity(op, 1)
    roles(op, ["w"])
    x = value(op, 0, "x")
    width, total = last(op, x, "x"), 0
    for part in parts_of(op, "w"):
        if part.rows < 1:
            fail(op, f"part {part.target} has rows {part.rows}; at least 1 is wanted")
        need_part(op, "w", part, (part.rows, width), (part.rows,))
        total += part.rows
    return (((*x.shape[:-1], total), "act"),)


def _unary(op: Op) -> Shapes:
    arity(op, 1)
    roles(op)
    x = value(op, 0, "x")
    if isinstance(op.attrs, ActAttrs) and not 0 <= op.attrs.sparsity < 1:
        fail(op, f"sparsity {op.attrs.sparsity} is outside [0, 1)")
    if isinstance(op.attrs, ScalarAttrs) and op.kind in ("softcap", "clip") and op.attrs.value <= 0:
        fail(op, f"value {op.attrs.value} must be above 0")
    return ((x.shape, x.dtype),)


def _act_mul(op: Op) -> Shapes:
    (((*lead, width), dtype),) = _unary(op)
    if not isinstance(width, int) or width % 2:
        fail(op, f"x is {width} wide; gate and up need an even width")
    return (((*lead, width // 2), dtype),)


def _act_mul_steps(op: Op, fresh: Fresh) -> list[Op]:
    (x,), (out,) = op.ins, op.outs
    assert x is not None
    gate, up, acted = (fresh(out.shape, out.dtype) for _ in range(3))
    half = last(op, out, "out")
    return [
        Op("split", (x,), (gate, up), SplitAttrs((half, half)), region=op.region),
        Op("act", (gate,), (acted,), op.attrs, region=op.region),
        Op("mul", (acted, up), (out,), NoAttrs(), region=op.region),
    ]


def _binary(op: Op) -> Shapes:
    """add, mul: the second input has x's shape, or 1 in some axes. mul may take a weight [H] (role w) for it."""
    x = value(op, 0, "x")
    if op.kind == "mul" and op.weights:
        arity(op, 1)
        roles(op, ["w"])
        one_part(op, "w", (last(op, x, "x"),))
        return ((x.shape, x.dtype),)
    arity(op, 2)
    roles(op)
    y = value(op, 1, "y")
    if len(y.shape) != len(x.shape) or any(b not in (a, 1) for a, b in zip(x.shape, y.shape, strict=True)):
        fail(op, f"shapes {show(x.shape)} and {show(y.shape)} do not go together (axes equal, or 1 in the second)")
    return ((x.shape, x.dtype),)


def _mix(op: Op) -> Shapes:
    arity(op, 2)
    roles(op)
    c, x = value(op, 0, "coefficients", 3), value(op, 1, "x", 3)
    if c.shape[0] != x.shape[0] or c.shape[2] != x.shape[1]:
        fail(op, f"coefficients {show(c.shape)} and x {show(x.shape)} do not go together; [A, n, m] and [A, m, H] are wanted")
    return (((c.shape[0], c.shape[1], x.shape[2]), x.dtype),)


def _reduce(op: Op) -> Shapes:
    arity(op, 1)
    roles(op)
    a: ReduceAttrs = op.attrs
    x = value(op, 0, "x")
    shape = list(x.shape)
    if len(shape) <= -a.axis or not isinstance(shape[a.axis], int):
        fail(op, f"axis {a.axis} of x {show(x.shape)} must be a number and not the first axis")
    shape[a.axis] = 1
    return ((tuple(shape), x.dtype),)


def _split(op: Op) -> Shapes:
    arity(op, 1)
    roles(op)
    a: SplitAttrs = op.attrs
    x = value(op, 0, "x")
    width = last(op, x, "x")
    if not a.sizes or min(a.sizes) < 1 or sum(a.sizes) != width:
        fail(op, f"sizes {list(a.sizes)} do not add up to the width {width}")
    return tuple(((*x.shape[:-1], size), x.dtype) for size in a.sizes)


def _concat(op: Op) -> Shapes:
    roles(op)
    if not op.ins:
        fail(op, "takes at least 1 input, got 0")
    xs = [value(op, i, f"x{i}") for i in range(len(op.ins))]
    for i, x in enumerate(xs):
        same(op, f"input {i} without its last axis", x.shape[:-1], xs[0].shape[:-1])
    widths = tuple(last(op, x, f"x{i}") for i, x in enumerate(xs))
    if op.attrs.sizes not in ((), widths):
        fail(op, f"sizes {list(op.attrs.sizes)} are not the inputs' widths {list(widths)}")
    return (((*xs[0].shape[:-1], sum(widths)), xs[0].dtype),)


def _view(op: Op) -> Shapes:
    arity(op, 1)
    roles(op)
    x = value(op, 0, "x")
    shape: tuple[Dim, ...] = op.attrs.shape
    if elements(op, shape) != elements(op, x.shape):
        fail(op, f"{show(x.shape)} cannot be seen as {show(shape)}: the number of elements differs")
    return ((shape, x.dtype),)


def _conv1d(op: Op) -> Shapes:
    arity(op, 1)
    roles(op, ["w"])
    a: ConvAttrs = op.attrs
    x = value(op, 0, "x", 2)
    if a.kernel % 2 == 0 or a.stride < 1:
        fail(op, f"kernel {a.kernel} must be odd and stride {a.stride} at least 1")
    one_part(op, "w", (a.channels, last(op, x, "x"), a.kernel), (a.channels,))
    return (((divide(op, x.shape[0], a.stride), a.channels), "act"),)


def _pool(op: Op) -> Shapes:
    arity(op, 1)
    roles(op)
    x = value(op, 0, "x", 2)
    rows = x.shape[0] if op.attrs.kind == "all" else Sym("N")
    return (((rows, x.shape[1]), x.dtype),)


def _output(op: Op) -> Shapes:
    arity(op, 1)
    roles(op, (), ["ids"])
    if op.ins[0] is None:
        fail(op, "input 0 (x) is missing")
    if not op.attrs.name:
        fail(op, "the result needs a name")
    one_part(op, "ids", (last(op, op.ins[0], "x"),))
    return ()


def _collective(op: Op) -> Shapes:
    arity(op, 1)
    roles(op)
    a: CollectiveAttrs = op.attrs
    x = value(op, 0, "x")
    width = last(op, x, "x")
    if a.size < 1 or (a.op in ("reduce_scatter", "all_to_all") and width % a.size):
        fail(op, f"width {width} cannot be shared by {a.size} ranks of axis {a.axis!r}")
    width = {"all_gather": width * a.size, "reduce_scatter": width // a.size}.get(a.op, width)
    return (((*x.shape[:-1], width), x.dtype),)


def _hf_module(op: Op) -> Shapes:
    a: HfModuleAttrs = op.attrs
    named = tuple(name for name, _ in a.specs)
    if named != op.states:
        fail(op, f"states {list(op.states)} and specs {list(named)} differ")
    states_between(op, 0, len(named))
    return a.outputs  # type: ignore[return-value]  # attrs know no Dim


def basic_kinds() -> list[OpDef]:
    """Definitions of all kinds of this file. docs/program.md has the meaning of each."""
    return [
        OpDef("embed", EmbedAttrs, _embed),
        OpDef("pos_embed", PosEmbedAttrs, _embed),
        OpDef("take", NoAttrs, _take),
        OpDef("rows", NoAttrs, _take),
        OpDef("merge_embeds", NoAttrs, _merge_embeds),
        OpDef("norm", NormAttrs, _norm, _norm_steps),
        OpDef("linear", LinearAttrs, _linear),
        OpDef("act", ActAttrs, _unary),
        OpDef("act_mul", ActAttrs, _act_mul, _act_mul_steps),
        OpDef("add", NoAttrs, _binary),
        OpDef("mul", NoAttrs, _binary),
        OpDef("mix", NoAttrs, _mix),
        OpDef("reduce", ReduceAttrs, _reduce),
        OpDef("softmax", NoAttrs, _unary),
        OpDef("scale", ScalarAttrs, _unary),
        OpDef("softcap", ScalarAttrs, _unary),
        OpDef("clip", ScalarAttrs, _unary),
        OpDef("split", SplitAttrs, _split),
        OpDef("concat", SplitAttrs, _concat),
        OpDef("view", ViewAttrs, _view),
        OpDef("conv1d", ConvAttrs, _conv1d),
        OpDef("pool", PoolAttrs, _pool),
        OpDef("output", OutputAttrs, _output),
        OpDef("collective", CollectiveAttrs, _collective),
        OpDef("hf_module", HfModuleAttrs, _hf_module),
    ]

"""pooled: a decoder without its head. Its result is "pooled", the rows that the head would have read, or scores of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmx.errors import ProgramError
from llmx.program.attrs import LinearAttrs, OutputAttrs
from llmx.program.ops import Model, Op, Part, Value, WeightRef

__all__ = ["pooled"]


def pooled(model: Model, score: Part | None = None, rename: Callable[[str], str] | None = None) -> Model:
    """The Model whose main Program ends behind its head rows. score: a product on top of them. rename: of every tensor.

    Raises ProgramError for a Program that takes no head rows.
    """
    main = model.programs["main"]
    at = next((i for i, op in enumerate(main.ops) if op.kind == "rows"), None)
    if at is None:
        raise ProgramError("program main takes no head rows: it cannot give vectors")
    kept = [op for op in main.ops[: at + 1] if op.kind != "output"]
    x = kept[-1].outs[0]
    if score is not None:
        out = Value(1 + max(value.id for op in kept for value in (*op.outs, *(v for v in op.ins if v is not None))), (x.shape[0], score.rows), "act")
        kept.append(Op("linear", (x,), (out,), LinearAttrs(), {"w": (score,)}, region=kept[-1].region))
        x = out
    kept.append(Op("output", (x,), (), OutputAttrs("pooled"), region=kept[-1].region))
    ops = kept if rename is None else [_renamed(op, rename) for op in kept]
    return replace(model, programs={**model.programs, "main": replace(main, ops=tuple(ops))})


def _renamed(op: Op, rename: Callable[[str], str]) -> Op:
    def ref(one: WeightRef) -> WeightRef:
        return replace(one, name=rename(one.name))

    def part(one: Part) -> Part:
        return replace(one, weight=ref(one.weight), bias=None if one.bias is None else ref(one.bias))

    return replace(op, weights={role: tuple(part(one) for one in parts) for role, parts in op.weights.items()})

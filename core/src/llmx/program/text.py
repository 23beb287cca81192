"""Printable form of Programs: one line per op, stable, for people and for `llmx explain --program`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from llmx.program.kinds.checks import show
from llmx.program.ops import Model, Op, Part, Program, State, Value

__all__ = ["model_text", "op_text", "program_text"]

_MANY = 8  # parts of one role; more are shown by the first and a count


def model_text(model: Model) -> str:
    """All Programs, then the States."""
    programs = [program_text(p) for p in model.programs.values()]
    return "\n\n".join([*programs, "\n".join(["states", *(f"  {_state(s)}" for s in model.states.values())])]) + "\n"


def program_text(program: Program) -> str:
    """A head line with the inputs, then a line per op."""
    inputs = ", ".join(f"%{v.id} {name} {_type(v)}" for name, v in program.inputs.items())
    return "\n".join([f"program {program.name}({inputs})", *(f"  {op_text(op)}" for op in program.ops)])


def op_text(op: Op) -> str:
    """One op: results with shapes, kind, inputs, attributes that differ from the default, weights, states, place."""
    left = ", ".join(f"%{v.id} {_type(v)}" for v in op.outs)
    ins = ", ".join("-" if v is None else f"%{v.id}" for v in op.ins)
    pieces = [
        f"{left} = {op.kind}" if left else op.kind,
        ins,
        _attrs(op.attrs),
        _weights(op),
        " ".join(f"[{name}]" for name in op.states),
    ]
    return " ".join(p for p in pieces if p) + f"  @{str(op.region).rstrip('.')}"


def _type(v: Value) -> str:
    return show(v.shape) + ("" if v.dtype == "act" else f" {v.dtype}")


def _state(state: State) -> str:
    s = state.spec
    if s.kind == "state":
        size = " + ".join("x".join(map(str, shape)) for shape in s.state) + " f32"
    else:
        size = f"{s.kv_heads} x ({s.head_dim} + {s.v_head_dim})"
    return f"{state.name}: {s.kind} {size}" + (f" window {s.window}" if s.window else "") + f", written by {state.owner}"


def _attrs(attrs: Any) -> str:
    inner = ", ".join(_fields(attrs))
    return f"{{{inner}}}" if inner else ""


def _fields(owner: Any) -> Iterator[str]:
    for f in fields(owner):
        value = getattr(owner, f.name)
        if f.default is not MISSING and value == f.default:
            continue
        if is_dataclass(value):
            inner = ", ".join(_fields(value))
            yield inner if f.name == "spec" else f"{f.name}=({inner})"
        else:
            yield f"{f.name}={_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        if value and all(isinstance(v, tuple) and len(v) == 2 and isinstance(v[0], str) for v in value):
            return "(" + ", ".join(f"{k}={_plain(v)}" for k, v in value) + ")"
        shown = [_plain(v) for v in value]
        return "[" + ", ".join(shown if len(shown) <= _MANY else [*shown[:2], f"... {len(shown)} in all"]) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _weights(op: Op) -> str:
    shown = []
    for role, parts in op.weights.items():
        label = "" if role == "w" else f"{role}: "
        some = parts if len(parts) <= _MANY else parts[:1]
        text = ", ".join(map(_part, some)) + (f", ... {len(parts)} in all" if len(some) < len(parts) else "")
        shown.append(label + text)
    return f"({'; '.join(shown)})" if shown else ""


def _part(part: Part) -> str:
    """Last piece of the target, size, storage; `+bias`, changes, and the tensor's name when it is another module's."""
    w = part.weight
    name = part.target.rsplit(".", 1)[-1]
    extra = ["+bias"] if part.bias is not None else []
    extra += [f"{t.name}{_call(t.args)}" for t in w.transforms]
    extra += [f"from {w.name}"] if not w.name.startswith(part.target) else []
    return " ".join([name, "x".join(map(str, w.shape)), str(w.quant), *extra])


def _call(args: Sequence[int]) -> str:
    return "(" + ",".join(map(str, args)) + ")"

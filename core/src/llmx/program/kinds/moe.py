"""Op kinds of mixtures of experts. Shape letters: T rows, H width, E experts, F width inside an expert."""

from __future__ import annotations

from llmx.program.attrs import MoeAttrs, MoeSpec
from llmx.program.kinds.checks import Shapes, arity, fail, last, need_part, one_part, parts_of, roles, same, value
from llmx.program.ops import Op, OpDef

__all__ = ["moe_kinds"]


def _check_spec(op: Op, s: MoeSpec) -> None:
    if not 1 <= s.top_k <= s.experts:
        fail(op, f"top_k {s.top_k} must lie in 1..{s.experts} (experts)")
    if s.groups < 1 or s.experts % s.groups or not 1 <= s.top_groups <= s.groups:
        fail(op, f"{s.experts} experts in {s.groups} groups of which {s.top_groups} are kept do not go together")
    if s.top_k > s.top_groups * (s.experts // s.groups):
        fail(op, f"top_k {s.top_k} exceeds the {s.top_groups * (s.experts // s.groups)} experts of the kept groups")


def _route(op: Op) -> Shapes:
    s: MoeSpec = op.attrs.spec
    arity(op, 1)
    _check_spec(op, s)
    x = value(op, 0, "x", 2)
    roles(op, ["router"], ["bias"])
    one_part(op, "router", (s.experts, last(op, x, "x")), (s.experts,))
    one_part(op, "bias", (s.experts,))
    return (((x.shape[0], s.top_k), "f32"), ((x.shape[0], s.top_k), "i32"))


def _experts(op: Op) -> Shapes:
    s: MoeSpec = op.attrs.spec
    arity(op, 3)
    _check_spec(op, s)
    x, w, ids = value(op, 0, "x", 2), value(op, 1, "w", 2), op.ins[2]
    width, chosen = last(op, x, "x"), (x.shape[0], s.top_k)
    same(op, "w", w.shape, chosen)
    if ids is None or ids.dtype != "i32":
        fail(op, "input 2 (ids) must be i32")
    same(op, "ids", ids.shape, chosen)
    if s.ffn < 1:
        fail(op, f"ffn {s.ffn} must be at least 1")
    roles(op, ["gate", "up", "down"])
    for role in ("gate", "up", "down"):
        shape, bias = ((width, s.ffn), (width,)) if role == "down" else ((s.ffn, width), (s.ffn,))
        for part in parts_of(op, role, s.experts):
            need_part(op, role, part, shape, bias)
    return ((x.shape, x.dtype),)


def moe_kinds() -> list[OpDef]:
    """moe_route (role router [E, H], bias: the correction added before the choice) and moe_experts (gate, up [F, H], down [H, F]; one Part per expert)."""
    return [OpDef("moe_route", MoeAttrs, _route), OpDef("moe_experts", MoeAttrs, _experts)]

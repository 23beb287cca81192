"""Op kind `recurrent`: mixers whose State is one place per request. Gates, norms and projections around them are ordinary ops.

Each kind below lists dims, ins -> out, weights, and the float32 shapes that its State holds. conv: kernel of the causal
depthwise convolution over tokens, followed by silu; its State keeps the last conv - 1 inputs, oldest first.

mamba2       heads, head_dim, groups, state, conv. ins xbc [T, C = heads*head_dim + 2*groups*state], dt [T, heads] -> [T, heads*head_dim]
             weights conv [C, 1, conv] (+ bias), a_log, d, dt_bias [heads]. State (C, conv - 1), (heads, head_dim, state).
             limits: (low, high) of dt after softplus.
mamba1       inner, state. ins x [T, inner], dt [T, inner], b [T, state], c [T, state] -> [T, inner]; the convolution before it is a
             short_conv of its own. weights a_log [inner, state], d [inner]. State (inner, state). dt goes through softplus.
gated_delta  k_heads, k_dim, v_heads, v_dim, conv. ins qkv [T, C = 2*k_heads*k_dim + v_heads*v_dim], a [T, v_heads], b [T, v_heads]
             -> [T, v_heads*v_dim]. q and k are l2-normalised (eps), q times k_dim ** -0.5; decay exp(-exp(a_log) * softplus(a + dt_bias)), beta sigmoid(b).
             weights conv [C, 1, conv] (+ bias), a_log, dt_bias [v_heads]. State (C, conv - 1), (v_heads, k_dim, v_dim).
kda          heads, k_dim, v_dim, conv. ins qkv [T, C = heads*(2*k_dim + v_dim)], g [T, heads*k_dim], b [T, heads] -> [T, heads*v_dim].
             decay per key element. weights conv: three Parts q, k, v [.., 1, conv], a_log [heads], dt_bias [heads*k_dim].
             State (C, conv - 1), (heads, k_dim, v_dim).
short_conv   channels, conv, silu (0 or 1). ins x [T, channels] -> [T, channels]. weights conv [channels, 1, conv] (+ bias). State (channels, conv - 1).
"""

from __future__ import annotations

from llmx.program.attrs import RecurrentAttrs, RecurrentSpec
from llmx.program.kinds.checks import Shapes, arity, fail, need_part, one_part, parts_of, roles, same, states_between, value
from llmx.program.ops import Op, OpDef

__all__ = ["recurrent_kinds", "recurrent_state"]

_DIMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("mamba1", ("inner", "state")),
    ("mamba2", ("conv", "groups", "head_dim", "heads", "state")),
    ("gated_delta", ("conv", "k_dim", "k_heads", "v_dim", "v_heads")),
    ("kda", ("conv", "heads", "k_dim", "v_dim")),
    ("short_conv", ("channels", "conv", "silu")),
)


def recurrent_state(spec: RecurrentSpec) -> tuple[tuple[int, ...], ...]:
    """The float32 shapes of one place of its State: KVSpec("state", state=...)."""
    d = dict(spec.dims)
    if spec.kind == "mamba1":
        return ((d["inner"], d["state"]),)
    if spec.kind == "short_conv":
        return ((d["channels"], d["conv"] - 1),)
    conv = (_channels(spec.kind, d), d["conv"] - 1)
    if spec.kind == "mamba2":
        return (conv, (d["heads"], d["head_dim"], d["state"]))
    return (conv, (d["v_heads" if spec.kind == "gated_delta" else "heads"], d["k_dim"], d["v_dim"]))


def _channels(kind: str, d: dict[str, int]) -> int:
    if kind == "mamba2":
        return d["heads"] * d["head_dim"] + 2 * d["groups"] * d["state"]
    if kind == "gated_delta":
        return 2 * d["k_heads"] * d["k_dim"] + d["v_heads"] * d["v_dim"]
    return d["heads"] * (2 * d["k_dim"] + d["v_dim"])


def _layout(kind: str, d: dict[str, int]) -> tuple[list[tuple[str, int]], int, dict[str, tuple[int, ...]]]:
    """Inputs (name, width), width of the result, shape of each weight but conv."""
    if kind == "mamba1":
        n, s = d["inner"], d["state"]
        return [("x", n), ("dt", n), ("b", s), ("c", s)], n, {"a_log": (n, s), "d": (n,)}
    if kind == "short_conv":
        return [("x", d["channels"])], d["channels"], {}
    wide = _channels(kind, d)
    if kind == "mamba2":
        h = d["heads"]
        return [("xbc", wide), ("dt", h)], h * d["head_dim"], {"a_log": (h,), "d": (h,), "dt_bias": (h,)}
    if kind == "gated_delta":
        h = d["v_heads"]
        return [("qkv", wide), ("a", h), ("b", h)], h * d["v_dim"], {"a_log": (h,), "dt_bias": (h,)}
    h, keys = d["heads"], d["heads"] * d["k_dim"]
    return [("qkv", wide), ("g", keys), ("b", h)], h * d["v_dim"], {"a_log": (h,), "dt_bias": (keys,)}


def _check_conv(op: Op, kind: str, d: dict[str, int]) -> None:
    if kind == "kda":
        keys, values = d["heads"] * d["k_dim"], d["heads"] * d["v_dim"]
        for part, wide in zip(parts_of(op, "conv", 3), (keys, keys, values), strict=True):
            need_part(op, "conv", part, (wide, 1, d["conv"]), (wide,))
        return
    wide = d["channels"] if kind == "short_conv" else _channels(kind, d)
    one_part(op, "conv", (wide, 1, d["conv"]), (wide,))


def _recurrent(op: Op) -> Shapes:
    spec: RecurrentSpec = op.attrs.spec
    known, d = dict(_DIMS), dict(spec.dims)
    if spec.kind not in known:
        fail(op, f"recurrent kind {spec.kind!r} is unknown; known: {', '.join(known)}")
    if tuple(sorted(d)) != known[spec.kind]:
        fail(op, f"dims of {spec.kind} are {', '.join(known[spec.kind])}; got {', '.join(sorted(d)) or 'none'}")
    if any(size < (0 if name == "silu" else 1) for name, size in d.items()):
        fail(op, f"dims {d} must all be at least 1")
    ins, width, weights = _layout(spec.kind, d)
    arity(op, len(ins))
    states_between(op, 1, 1)
    rows = value(op, 0, ins[0][0], 2).shape[0]
    for i, (name, wide) in enumerate(ins):
        same(op, name, value(op, i, name, 2).shape, (rows, wide))
    roles(op, [*weights, *(["conv"] if "conv" in d else [])])
    for role, shape in weights.items():
        one_part(op, role, shape)
    if "conv" in d:
        _check_conv(op, spec.kind, d)
    return (((rows, width), "act"),)


def recurrent_kinds() -> list[OpDef]:
    """The definition of `recurrent`."""
    return [OpDef("recurrent", RecurrentAttrs, _recurrent)]

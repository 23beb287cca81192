"""Reference kernel of `recurrent`: each mixer is one function from a State and one token's inputs to the next State and its output.

llmx.program.kinds.recurrent says what each computes. A State is the tuple of float32 tensors that its place holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from llmx.executor.slots import RequestRows
from llmx.executor.torch.kernel import Bound, Tensor, reference
from llmx.executor.torch.rows import Rows
from llmx.program.attrs import RecurrentSpec

__all__ = ["recurrent"]

Held = tuple[Tensor, ...]
Token = Callable[[RecurrentSpec, Mapping[str, Tensor], Held, tuple[Tensor, ...]], tuple[Held, Tensor]]


def _conv(w: Mapping[str, Tensor], kept: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(last conv - 1 inputs, output) of the causal depthwise convolution: kept [C, conv - 1] oldest first, x [C]."""
    window = torch.cat([kept, x[:, None]], 1)
    y = (window * w["conv.0"][:, 0]).sum(1)
    return window[:, 1:], y + w["conv.0.bias"] if "conv.0.bias" in w else y


def _short_conv(s: RecurrentSpec, w: Mapping[str, Tensor], held: Held, ins: tuple[Tensor, ...]) -> tuple[Held, Tensor]:
    kept, y = _conv(w, held[0], ins[0])
    return (kept,), F.silu(y) if dict(s.dims)["silu"] else y


def _mamba1(s: RecurrentSpec, w: Mapping[str, Tensor], held: Held, ins: tuple[Tensor, ...]) -> tuple[Held, Tensor]:
    x, dt, b, c = ins
    dt = F.softplus(dt)
    state = held[0] * torch.exp(-dt[:, None] * w["a_log.0"].exp()) + (dt * x)[:, None] * b
    return (state,), (state * c).sum(-1) + w["d.0"] * x


def _mamba2(s: RecurrentSpec, w: Mapping[str, Tensor], held: Held, ins: tuple[Tensor, ...]) -> tuple[Held, Tensor]:
    d = dict(s.dims)
    heads, size, groups = d["heads"], d["head_dim"], d["groups"]
    kept, xbc = _conv(w, held[0], ins[0])
    x, b, c = F.silu(xbc).split((heads * size, groups * d["state"], groups * d["state"]))
    x, (b, c) = x.view(heads, size), (m.view(groups, -1).repeat_interleave(heads // groups, 0) for m in (b, c))
    dt = F.softplus(ins[1] + w["dt_bias.0"])
    if s.limits:
        dt = dt.clamp(*s.limits)
    decay = torch.exp(-dt * w["a_log.0"].exp())
    state = held[1] * decay[:, None, None] + (dt[:, None] * x)[..., None] * b[:, None]
    return (kept, state), ((state * c[:, None]).sum(-1) + w["d.0"][:, None] * x).flatten()


def _gated_delta(s: RecurrentSpec, w: Mapping[str, Tensor], held: Held, ins: tuple[Tensor, ...]) -> tuple[Held, Tensor]:
    d = dict(s.dims)
    heads, keys = d["v_heads"], d["k_heads"] * d["k_dim"]
    kept, qkv = _conv(w, held[0], ins[0])
    q, k, v = F.silu(qkv).split((keys, keys, heads * d["v_dim"]))
    q, k = (m.view(d["k_heads"], -1).repeat_interleave(heads // d["k_heads"], 0) for m in (q, k))
    q, k = (m / (m.square().sum(-1, keepdim=True) + s.eps).sqrt() for m in (q, k))
    decay = torch.exp(-w["a_log.0"].exp() * F.softplus(ins[1] + w["dt_bias.0"]))
    state = held[1] * decay[:, None, None]
    delta = (v.view(heads, -1) - (state * k[..., None]).sum(1)) * ins[2].sigmoid()[:, None]
    state = state + k[..., None] * delta[:, None]
    return (kept, state), (state * (q * d["k_dim"] ** -0.5)[..., None]).sum(1).flatten()


_TOKEN: Mapping[str, Token] = {"mamba1": _mamba1, "mamba2": _mamba2, "gated_delta": _gated_delta, "short_conv": _short_conv}


@reference()
def recurrent(op: Bound, rows: Rows, *ins: Tensor) -> Tensor:
    """Token by token, request by request; the State after the last known token goes to place 0, after draft i to place i."""
    return torch.cat([_run(op, one, tuple(x[one.span] for x in ins)) for one in rows.requests])


def _run(op: Bound, one: RequestRows, ins: tuple[Tensor, ...]) -> Tensor:
    spec: RecurrentSpec = op.attrs.spec
    state, token = op.states[0], _TOKEN[spec.kind]
    held, outs = tuple(t[state.place(one)] for t in state.tensors), []
    for t in range(one.q):
        held, y = token(spec, op.weights, held, tuple(x[t] for x in ins))
        outs.append(y)
        draft = t - (one.q - 1 - one.drafts)
        if draft >= 0:
            for to, new in zip(state.tensors, held, strict=True):
                to[state.place(one, draft)] = new
    return torch.stack(outs)

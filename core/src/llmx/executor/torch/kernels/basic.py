"""Reference kernels of ops without a State: rows, products, norms, elementwise, shapes.

Shape letters: A rows (any leading axes), H width of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from statistics import NormalDist

import torch
import torch.nn.functional as F

from llmx.executor.torch.kernel import Bound, Tensor, reference
from llmx.executor.torch.rows import Rows
from llmx.program.attrs import NormAttrs

__all__ = [
    "act", "act_mul", "activation", "add", "clip", "concat", "embed", "linear", "mix", "mul", "norm", "normalise", "output", "pool", "pos_embed",
    "reduce", "scale", "softcap", "softmax", "split", "take", "view",
]  # fmt: skip

_ACTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def activation(kind: str, x: Tensor) -> Tensor:
    """The activation that ActAttrs and MoeSpec name."""
    return _ACTS[kind](x)


def normalise(x: Tensor, a: NormAttrs, w: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """x [A, H] normalised over its last axis in a.groups parts, times w + a.offset, plus bias."""
    parts = x.unflatten(-1, (a.groups, -1))
    if a.kind == "layer":
        parts = parts - parts.mean(-1, keepdim=True)
    size = parts.square().sum(-1, keepdim=True) if a.kind == "l2" else parts.square().mean(-1, keepdim=True)
    size = size.clamp(min=a.eps) if a.eps_floor else size + a.eps
    y = (parts / size.sqrt()).flatten(-2)
    if w is not None:
        y = y * (w + a.offset)
    return y if bias is None else y + bias


@reference()
def embed(op: Bound, rows: Rows, ids: Tensor) -> Tensor:
    """Rows of the table; ids past its end read row `outside`."""
    table = op.weights["w.0"]
    if op.attrs.outside is not None:
        ids = torch.where(ids < table.shape[0], ids, op.attrs.outside)
    return table[ids] * op.attrs.scale


@reference()
def pos_embed(op: Bound, rows: Rows, positions: Tensor) -> Tensor:
    """Rows position + offset of the table."""
    return op.weights["w.0"][positions + op.attrs.offset]


@reference()
def take(op: Bound, rows: Rows, x: Tensor, index: Tensor) -> Tensor:
    """Also of kind `rows`."""
    return x[index]


@reference()
def linear(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """W x + b of each Part, joined."""
    parts = [key for key in op.weights if not key.endswith(".bias")]
    return torch.cat([F.linear(x, op.weights[key], op.weights.get(f"{key}.bias")) for key in parts], -1)


@reference()
def norm(op: Bound, rows: Rows, x: Tensor, gate: Tensor | None = None) -> Tensor:
    """All kinds; a gate multiplies by silu(gate) before or after."""
    a: NormAttrs = op.attrs
    if gate is not None and not a.gate_after:
        x = x * F.silu(gate)
    y = normalise(x, a, op.weights.get("w.0"), op.weights.get("w.0.bias"))
    return y * F.silu(gate) if gate is not None and a.gate_after else y


@reference()
def act(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """With sparsity s only what lies above mean + std * quantile(s) of its row goes in."""
    if op.attrs.sparsity:
        x = F.relu(x - x.mean(-1, keepdim=True) - x.std(-1, keepdim=True, correction=0) * NormalDist().inv_cdf(op.attrs.sparsity))
    return activation(op.attrs.kind, x)


@reference()
def act_mul(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """act(first half) * second half."""
    gate, up = x.chunk(2, -1)
    acted: Tensor = act.function(op, rows, gate)
    return acted * up


@reference()
def add(op: Bound, rows: Rows, x: Tensor, y: Tensor) -> Tensor:
    """y has 1 in some axes, or x's shape."""
    return x + y


@reference()
def mul(op: Bound, rows: Rows, x: Tensor, y: Tensor | None = None) -> Tensor:
    """With another value, or with a weight [H]."""
    return x * (op.weights["w.0"] if y is None else y)


@reference()
def mix(op: Bound, rows: Rows, c: Tensor, x: Tensor) -> Tensor:
    """c [A, n, m] times x [A, m, H]."""
    return c @ x


@reference()
def reduce(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """mean, sum or rms over one axis, which stays with size 1."""
    if op.attrs.kind == "sum":
        return x.sum(op.attrs.axis, keepdim=True)
    return x.mean(op.attrs.axis, keepdim=True) if op.attrs.kind == "mean" else x.square().mean(op.attrs.axis, keepdim=True).sqrt()


@reference()
def softmax(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """Over the last axis."""
    return x.softmax(-1)


@reference()
def scale(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """x v."""
    return x * op.attrs.value


@reference()
def softcap(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """v tanh(x / v)."""
    return op.attrs.value * torch.tanh(x / op.attrs.value)


@reference()
def clip(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """x to [-v, v]."""
    return x.clamp(-op.attrs.value, op.attrs.value)


@reference()
def split(op: Bound, rows: Rows, x: Tensor) -> tuple[Tensor, ...]:
    """The last axis cut into `sizes`."""
    return x.split(op.attrs.sizes, -1)


@reference()
def concat(op: Bound, rows: Rows, *xs: Tensor) -> Tensor:
    """The last axis joined."""
    return torch.cat(xs, -1)


@reference()
def view(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """The same elements in another shape."""
    return x.reshape([rows.size(dim) for dim in op.attrs.shape])


@reference()
def pool(op: Bound, rows: Rows, x: Tensor) -> Tensor:
    """One row per request, or all rows; `normalize` brings each to length 1."""
    kind = op.attrs.kind
    if kind != "all":
        own = [x[one.span] for one in rows.requests]
        x = torch.stack([part.mean(0) if kind == "mean" else part[0] if kind == "cls" else part[-1] for part in own])
    return x / x.norm(dim=-1, keepdim=True).clamp(min=sqrt(torch.finfo(x.dtype).tiny)) if op.attrs.normalize else x


@reference()
def output(op: Bound, rows: Rows, x: Tensor) -> tuple[()]:
    """Names a value; the executor reads it."""
    return ()

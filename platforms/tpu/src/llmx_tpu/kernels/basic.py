"""Ops without a State: rows, products, norms, elementwise, shapes.

Shape letters: A rows (any leading axes), H width of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np

from llmx.program.attrs import NormAttrs
from llmx_tpu.kernel import Array, Bound, reference
from llmx_tpu.rows import Rows

__all__ = [
    "act", "act_mul", "activation", "add", "clip", "concat", "embed", "linear", "mix", "mul", "norm", "normalise", "output", "pool", "pos_embed",
    "product", "reduce", "scale", "softcap", "softmax", "split", "take", "view",
]  # fmt: skip

_ACTS: Mapping[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
}


def activation(kind: str, x: Array) -> Array:
    """The activation that ActAttrs and MoeSpec name."""
    return _ACTS[kind](x)


def product(x: Array, w: Array, bias: Array | None = None) -> Array:
    """x [A, K] times w [N, K] transposed, plus bias; the inputs in w's type, sums in float32."""
    precision = jax.lax.Precision.HIGHEST if w.dtype == jnp.float32 else None
    y = jnp.einsum("...k,nk->...n", x.astype(w.dtype), w, precision=precision, preferred_element_type=jnp.float32)
    return y if bias is None else y + bias


def normalise(x: Array, a: NormAttrs, w: Array | None = None, bias: Array | None = None) -> Array:
    """x [A, H] normalised over its last axis in a.groups parts, times w + a.offset, plus bias."""
    parts = x.reshape(*x.shape[:-1], a.groups, -1)
    if a.kind == "layer":
        parts = parts - parts.mean(-1, keepdims=True)
    square = jnp.square(parts)
    size = square.sum(-1, keepdims=True) if a.kind == "l2" else square.mean(-1, keepdims=True)
    size = jnp.maximum(size, a.eps) if a.eps_floor else size + a.eps
    y = (parts / jnp.sqrt(size)).reshape(x.shape)
    if w is not None:
        y = y * (w + a.offset)
    return y if bias is None else y + bias


@reference()
def embed(op: Bound, rows: Rows, ids: Array) -> Array:
    """Rows of the table; ids past its end read row `outside`."""
    table = op.weights["w.0"]
    if op.attrs.outside is not None:
        ids = jnp.where(ids < table.shape[0], ids, op.attrs.outside)
    return table[ids].astype(jnp.float32) * np.float32(op.attrs.scale)


@reference()
def pos_embed(op: Bound, rows: Rows, positions: Array) -> Array:
    """Rows position + offset of the table."""
    return op.weights["w.0"][positions + op.attrs.offset].astype(jnp.float32)


@reference()
def take(op: Bound, rows: Rows, x: Array, index: Array) -> Array:
    """Also of kind `rows`."""
    return x[index]


@reference()
def linear(op: Bound, rows: Rows, x: Array) -> Array:
    """W x + b of each Part, joined."""
    keys = [key for key in op.weights if not key.endswith(".bias")]
    return jnp.concatenate([product(x, op.weights[key], op.weights.get(f"{key}.bias")) for key in keys], -1)


@reference()
def norm(op: Bound, rows: Rows, x: Array, gate: Array | None = None) -> Array:
    """All kinds; a gate multiplies by silu(gate) before or after."""
    a: NormAttrs = op.attrs
    if gate is not None and not a.gate_after:
        x = x * jax.nn.silu(gate)
    y = normalise(x, a, op.weights.get("w.0"), op.weights.get("w.0.bias"))
    return y * jax.nn.silu(gate) if gate is not None and a.gate_after else y


def _act(op: Bound, x: Array) -> Array:
    if op.attrs.sparsity:
        x = jax.nn.relu(x - x.mean(-1, keepdims=True) - x.std(-1, keepdims=True) * NormalDist().inv_cdf(op.attrs.sparsity))
    return activation(op.attrs.kind, x)


@reference()
def act(op: Bound, rows: Rows, x: Array) -> Array:
    """With sparsity s only what lies above mean + std * quantile(s) of its row goes in."""
    return _act(op, x)


@reference()
def act_mul(op: Bound, rows: Rows, x: Array) -> Array:
    """act(first half) * second half."""
    gate, up = jnp.split(x, 2, -1)
    return _act(op, gate) * up


@reference()
def add(op: Bound, rows: Rows, x: Array, y: Array) -> Array:
    """y has 1 in some axes, or x's shape."""
    return x + y


@reference()
def mul(op: Bound, rows: Rows, x: Array, y: Array | None = None) -> Array:
    """With another value, or with a weight [H]."""
    return x * (op.weights["w.0"] if y is None else y)


@reference()
def mix(op: Bound, rows: Rows, c: Array, x: Array) -> Array:
    """c [A, n, m] times x [A, m, H]."""
    return jnp.matmul(c, x, precision=jax.lax.Precision.HIGHEST)


@reference()
def reduce(op: Bound, rows: Rows, x: Array) -> Array:
    """mean, sum or rms over one axis, which stays with size 1."""
    if op.attrs.kind == "sum":
        return x.sum(op.attrs.axis, keepdims=True)
    return x.mean(op.attrs.axis, keepdims=True) if op.attrs.kind == "mean" else jnp.sqrt(jnp.square(x).mean(op.attrs.axis, keepdims=True))


@reference()
def softmax(op: Bound, rows: Rows, x: Array) -> Array:
    """Over the last axis."""
    return jax.nn.softmax(x, -1)


@reference()
def scale(op: Bound, rows: Rows, x: Array) -> Array:
    """x v."""
    return x * np.float32(op.attrs.value)


@reference()
def softcap(op: Bound, rows: Rows, x: Array) -> Array:
    """v tanh(x / v)."""
    return op.attrs.value * jnp.tanh(x / op.attrs.value)


@reference()
def clip(op: Bound, rows: Rows, x: Array) -> Array:
    """x to [-v, v]."""
    return jnp.clip(x, -op.attrs.value, op.attrs.value)


@reference()
def split(op: Bound, rows: Rows, x: Array) -> tuple[Array, ...]:
    """The last axis cut into `sizes`."""
    return tuple(jnp.split(x, list(np.cumsum(op.attrs.sizes)[:-1]), -1))


@reference()
def concat(op: Bound, rows: Rows, *xs: Array) -> Array:
    """The last axis joined."""
    return jnp.concatenate(xs, -1)


@reference()
def view(op: Bound, rows: Rows, x: Array) -> Array:
    """The same elements in another shape."""
    return x.reshape([rows.size(dim) for dim in op.attrs.shape])


@reference()
def pool(op: Bound, rows: Rows, x: Array) -> Array:
    """One row per request, or all rows; `normalize` brings each to length 1."""
    kind = op.attrs.kind
    if kind == "mean":
        count = rows.sizes["N"]
        sums = jax.ops.segment_sum(jnp.where((rows.owner < count)[:, None], x, 0), rows.owner, count + 1)[:count]
        x = sums / jnp.maximum(rows.q, 1)[:, None]
    elif kind != "all":
        x = x[rows.first if kind == "cls" else jnp.maximum(rows.first + rows.q - 1, 0)]
    if not op.attrs.normalize:
        return x
    return x / jnp.maximum(jnp.sqrt(jnp.square(x).sum(-1, keepdims=True)), float(np.sqrt(np.finfo(np.float32).tiny)))


@reference()
def output(op: Bound, rows: Rows, x: Array) -> tuple[()]:
    """Names a value; the executor reads it."""
    return ()

"""`recurrent`: each mixer is one function from a State and one token's inputs to the next State and its output.

llmx.program.kinds.recurrent says what each computes. A State is the tuple of float32 arrays that its place holds. All requests of a step go on
together, token by token; the functions are written for one request and mapped over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from llmx.program.attrs import RecurrentSpec
from llmx_tpu.kernel import Array, Bound, reference
from llmx_tpu.rows import Rows

__all__ = ["recurrent"]

Held = tuple[Array, ...]
Token = Callable[[RecurrentSpec, Mapping[str, Array], Held, tuple[Array, ...]], tuple[Held, Array]]


def _conv(w: Mapping[str, Array], kept: Array, x: Array) -> tuple[Array, Array]:
    """(last conv - 1 inputs, output) of the causal depthwise convolution: kept [C, conv - 1] oldest first, x [C]."""
    window = jnp.concatenate([kept, x[:, None]], 1)
    y = (window * w["conv.0"].reshape(window.shape)).sum(1)
    return window[:, 1:], y + w["conv.0.bias"] if "conv.0.bias" in w else y


def _short_conv(s: RecurrentSpec, w: Mapping[str, Array], held: Held, ins: tuple[Array, ...]) -> tuple[Held, Array]:
    kept, y = _conv(w, held[0], ins[0])
    return (kept,), jax.nn.silu(y) if dict(s.dims)["silu"] else y


def _mamba1(s: RecurrentSpec, w: Mapping[str, Array], held: Held, ins: tuple[Array, ...]) -> tuple[Held, Array]:
    x, dt, b, c = ins
    dt = jax.nn.softplus(dt)
    state = held[0] * jnp.exp(-dt[:, None] * jnp.exp(w["a_log.0"])) + (dt * x)[:, None] * b
    return (state,), (state * c).sum(-1) + w["d.0"] * x


def _mamba2(s: RecurrentSpec, w: Mapping[str, Array], held: Held, ins: tuple[Array, ...]) -> tuple[Held, Array]:
    d = dict(s.dims)
    heads, size, groups = d["heads"], d["head_dim"], d["groups"]
    kept, xbc = _conv(w, held[0], ins[0])
    x, b, c = jnp.split(jax.nn.silu(xbc), [heads * size, heads * size + groups * d["state"]])
    x, (b, c) = x.reshape(heads, size), (jnp.repeat(m.reshape(groups, -1), heads // groups, 0) for m in (b, c))
    dt = jax.nn.softplus(ins[1] + w["dt_bias.0"])
    if s.limits:
        dt = jnp.clip(dt, *s.limits)
    decay = jnp.exp(-dt * jnp.exp(w["a_log.0"]))
    state = held[1] * decay[:, None, None] + (dt[:, None] * x)[..., None] * b[:, None]
    return (kept, state), ((state * c[:, None]).sum(-1) + w["d.0"][:, None] * x).reshape(-1)


def _gated_delta(s: RecurrentSpec, w: Mapping[str, Array], held: Held, ins: tuple[Array, ...]) -> tuple[Held, Array]:
    d = dict(s.dims)
    heads, keys = d["v_heads"], d["k_heads"] * d["k_dim"]
    kept, qkv = _conv(w, held[0], ins[0])
    q, k, v = jnp.split(jax.nn.silu(qkv), [keys, 2 * keys])
    q, k = (jnp.repeat(m.reshape(d["k_heads"], -1), heads // d["k_heads"], 0) for m in (q, k))
    q, k = (m / jnp.sqrt(jnp.square(m).sum(-1, keepdims=True) + s.eps) for m in (q, k))
    decay = jnp.exp(-jnp.exp(w["a_log.0"]) * jax.nn.softplus(ins[1] + w["dt_bias.0"]))
    state = held[1] * decay[:, None, None]
    delta = (v.reshape(heads, -1) - (state * k[..., None]).sum(1)) * jax.nn.sigmoid(ins[2])[:, None]
    state = state + k[..., None] * delta[:, None]
    return (kept, state), (state * (q * d["k_dim"] ** -0.5)[..., None]).sum(1).reshape(-1)


_TOKEN: Mapping[str, Token] = {"mamba1": _mamba1, "mamba2": _mamba2, "gated_delta": _gated_delta, "short_conv": _short_conv}


@reference()
def recurrent(op: Bound, rows: Rows, *ins: Array) -> Array:
    """The State after a request's last known token goes to place 0, after draft i to place i."""
    s: RecurrentSpec = op.attrs.spec
    weights = {key: value.astype(jnp.float32) for key, value in op.weights.items()}
    state, total, count = op.states[0], ins[0].shape[0], rows.sizes["N"]
    table = rows.table(state)

    def token(held: Held, given: tuple[Array, ...]) -> tuple[Held, Array]:
        return _TOKEN[s.kind](s, weights, held, given)

    def step(i: Array, carry: tuple[Held, Held, Array]) -> tuple[Held, Held, Array]:
        held, pages, out = carry
        row, runs = jnp.minimum(rows.first + i, total - 1), i < rows.q
        new, y = jax.vmap(token)(held, tuple(x[row] for x in ins))
        held = tuple(jnp.where(runs.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, held, strict=True))
        draft = i - (rows.q - 1 - rows.drafts)
        place = jnp.take_along_axis(table, jnp.clip(draft, 0, table.shape[1] - 1)[:, None], 1)[:, 0]
        to = jnp.where(runs & (draft >= 0) & (place > 0), place, pages[0].shape[0])  # past the end: dropped
        pages = tuple(page.at[to].set(value.astype(page.dtype), mode="drop") for page, value in zip(pages, held, strict=True))
        return held, pages, out.at[jnp.where(runs, row, total)].set(y, mode="drop")

    pages = rows.arrays(state)
    held = tuple(page[table[:, 0]].astype(jnp.float32) for page in pages)
    _, y = jax.eval_shape(jax.vmap(token), held, tuple(x[:count] for x in ins))
    _, written, out = jax.lax.fori_loop(0, rows.q.max(), step, (held, pages, jnp.zeros((total, *y.shape[1:]))))
    rows.replace(state, written)
    return out

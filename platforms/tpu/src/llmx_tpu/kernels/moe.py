"""Mixtures of experts. Shape letters: T rows, H width, E experts, k chosen experts."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from llmx.program.attrs import MoeAttrs, MoeSpec
from llmx_tpu.kernel import Array, Bound, Reference, reference
from llmx_tpu.kernels.basic import activation, product
from llmx_tpu.rows import Rows
from llmx_tpu.weights import Weights

__all__ = ["moe_experts", "moe_route"]


@reference()
def moe_route(op: Bound, rows: Rows, x: Array) -> tuple[Array, Array]:
    """(weights [T, k], ids [T, k]): best groups, then best experts; ties to the lowest id."""
    s: MoeSpec = op.attrs.spec
    logits = product(x, op.weights["router.0"].astype(jnp.float32), op.weights.get("router.0.bias"))
    scores = jax.nn.softmax(logits, -1) if s.score == "softmax" else jax.nn.sigmoid(logits)
    choice = scores + op.weights["bias.0"] if "bias.0" in op.weights else scores
    if s.groups > 1:
        grouped = choice.reshape(choice.shape[0], s.groups, -1)
        best = jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0].sum(-1)
        kept = jax.lax.top_k(best, s.top_groups)[1]
        stays = jax.nn.one_hot(kept, s.groups, dtype=bool).any(1)
        choice = jnp.where(stays[..., None], grouped, -jnp.inf).reshape(choice.shape)
    ids = jax.lax.top_k(choice, s.top_k)[1]  # among equals the lowest index first
    w = jnp.take_along_axis(scores, ids, -1)
    return (w / w.sum(-1, keepdims=True) if s.normalize else w) * s.scale, ids.astype(jnp.int32)


class _Experts(Reference):
    """All experts of a role as one array [E, N, K], so that one grouped product serves them all."""

    def pack(self, weights: Weights, spec: object, uses: tuple[str, ...]) -> dict[str, Array]:
        """Roles gate, up and down stacked over experts; their biases likewise, as "gate.bias"."""
        attrs: MoeAttrs = spec.attrs  # type: ignore[attr-defined]
        packed = {}
        for role in ("gate", "up", "down"):
            packed[role] = weights.stacked([f"{role}.{i}" for i in range(attrs.spec.experts)])
            if f"{role}.0.bias" in weights:
                packed[f"{role}.bias"] = weights.stacked([f"{role}.{i}.bias" for i in range(attrs.spec.experts)])
        return packed


def _experts(op: Bound, rows: Rows, x: Array, w: Array, ids: Array) -> Array:
    """Sum over the chosen experts of w * down(act(gate x) * up x), added in the row's own order."""
    s: MoeSpec = op.attrs.spec
    flat = ids.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    expert, sizes = flat[order], jnp.bincount(flat, length=s.experts)
    lines = x[order // s.top_k]
    gate, up = (_product(op.weights, role, lines, sizes, expert) for role in ("gate", "up"))
    down = _product(op.weights, "down", activation(s.act, gate) * up, sizes, expert)
    parts = jnp.zeros_like(down).at[order].set(down).reshape(*ids.shape, -1) * w[..., None]
    total = parts[:, 0]
    for place in range(1, s.top_k):
        total = total + parts[:, place]
    return total


def _product(weights: Mapping[str, Array], role: str, x: Array, sizes: Array, expert: Array) -> Array:
    """Each line of x [T k, K], sorted by expert, times its expert's matrix."""
    w = weights[role]
    precision = jax.lax.Precision.HIGHEST if w.dtype == jnp.float32 else None
    y = jax.lax.ragged_dot(x.astype(w.dtype), w.swapaxes(1, 2), sizes.astype(jnp.int32), precision=precision, preferred_element_type=jnp.float32)
    return y + weights[f"{role}.bias"][expert] if f"{role}.bias" in weights else y


moe_experts = _Experts(_experts)

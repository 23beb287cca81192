"""Reference kernels of mixtures of experts. Shape letters: T rows, H width, E experts, k chosen experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llmx.executor.torch.kernel import Bound, Tensor, reference
from llmx.executor.torch.kernels.basic import activation
from llmx.executor.torch.rows import Rows
from llmx.program.attrs import MoeSpec

__all__ = ["moe_experts", "moe_route"]


@reference()
def moe_route(op: Bound, rows: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
    """(weights [T, k], ids [T, k]): best groups, then best experts; ties to the lowest id."""
    s: MoeSpec = op.attrs.spec
    logits = F.linear(x, op.weights["router.0"], op.weights.get("router.0.bias"))
    scores = logits.softmax(-1) if s.score == "softmax" else logits.sigmoid()
    choice = scores + op.weights["bias.0"] if "bias.0" in op.weights else scores
    if s.groups > 1:
        grouped = choice.unflatten(-1, (s.groups, -1))
        best = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1)
        kept = _descending(best)[:, : s.top_groups]
        dropped = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
        choice = grouped.masked_fill(dropped[..., None], -torch.inf).flatten(1)
    ids = _descending(choice)[:, : s.top_k]
    w = scores.gather(1, ids)
    return (w / w.sum(-1, keepdim=True) if s.normalize else w) * s.scale, ids


def _descending(x: Tensor) -> Tensor:
    """Indexes of the last axis from the largest value on; among equals the lowest first."""
    return torch.sort(x, dim=-1, descending=True, stable=True).indices


@reference()
def moe_experts(op: Bound, rows: Rows, x: Tensor, w: Tensor, ids: Tensor) -> Tensor:
    """Sum over the chosen experts of w * down(act(gate x) * up x), added in the row's own order."""
    s: MoeSpec = op.attrs.spec
    parts = x.new_zeros((*ids.shape, x.shape[-1]))  # [T, k, H]
    for expert in ids.unique().tolist():
        row, place = (ids == expert).nonzero(as_tuple=True)
        gate, up = (_product(op, role, expert, x[row]) for role in ("gate", "up"))
        parts[row, place] = _product(op, "down", expert, activation(s.act, gate) * up) * w[row, place][:, None]
    total = parts[:, 0]
    for place in range(1, s.top_k):
        total = total + parts[:, place]
    return total


def _product(op: Bound, role: str, expert: int, x: Tensor) -> Tensor:
    return F.linear(x, op.weights[f"{role}.{expert}"], op.weights.get(f"{role}.{expert}.bias"))

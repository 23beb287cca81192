"""Kept: what kernels without weights and memory of their own share."""

from __future__ import annotations

from llmx.executor import Limits
from llmx.executor.torch.kernel import Spec
from llmx.executor.torch.weights import Weights

__all__ = ["Kept"]


class Kept:
    """A kernel that packs nothing and keeps no memory."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> None:
        """Nothing."""

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """None."""
        return 0

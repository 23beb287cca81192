"""What an executor gets of an adapter: per Part of a linear the two low-rank matrices that are added to its weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmx.weights.host_tensor import HostTensor

__all__ = ["AdapterPart"]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterPart:
    """y = g (W x + scale * B (A x)) + bias, for the rows of requests that use the adapter; all other rows are as without it.

    a: [rank, in], b: [rows, rank], each f32, f16 or bf16. magnitude: f32 [rows], the length that a row of W + scale B A shall have (DoRA),
    so g = magnitude / length; None: g is 1. The Control `lora_add` brings {"slot": int, "parts": {Part.target: AdapterPart}}, replacing what
    the slot had; `lora_remove` brings {"slot": int}. An executor that does both has the feature "lora"; one whose fused kernels do it too,
    also "lora.fusions".
    """

    a: HostTensor
    b: HostTensor
    scale: float
    magnitude: np.ndarray | None = None

    @property
    def rank(self) -> int:
        """Rows of A."""
        return self.a.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of both matrices."""
        return self.a.nbytes + self.b.nbytes

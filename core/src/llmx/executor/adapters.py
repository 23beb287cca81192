"""What an executor gets of an adapter: per Part of a linear or an embedding two low-rank matrices to add to its weight, or another weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmx.weights.host_tensor import HostTensor

__all__ = ["AdapterPart", "LoraPart", "WholePart"]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterPart:
    """y = g (W x + scale * B (A x)) + bias, for the rows of requests that use the adapter; all other rows are as without it.

    a: [rank, in], b: [rows, rank], each f32, f16 or bf16. magnitude: f32 [rows], the length that a row of W + scale B A shall have (DoRA),
    so g = magnitude / length; None: g is 1. Of an embedding `in` is the vocabulary and x the token, so that A x is a column of A, and
    the embedding's scale multiplies y; DoRA's rows are then columns of the table.

    The Control `lora_add` brings {"slot": int, "parts": {Part.target: LoraPart}}, replacing what the slot had; `lora_remove` brings
    {"slot": int}. An executor that does both has the feature "lora"; one that takes embeddings and WholeParts too, also "lora.embeddings"; one
    whose fused kernels do it, also "lora.fusions".
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


@dataclass(frozen=True, slots=True, eq=False)
class WholePart:
    """A weight that stands in the place of the model's own for the rows of requests that use the adapter: [rows, in], f32, f16 or bf16."""

    weight: HostTensor

    @property
    def rank(self) -> int:
        """0: it is no product of two matrices."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.weight.nbytes


# What an adapter has for one Part: AdapterPart is the low-rank term that is added to the weight, WholePart a weight in its place, LoraPart either
LoraPart = AdapterPart | WholePart

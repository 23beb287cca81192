"""cuBLASLt through torch as a provider of linear: torch.nn.functional.linear of bfloat16 rows and weights, which torch gives to cuBLAS or cuBLASLt."""

from __future__ import annotations

from llmx.executor.torch.library import LibraryLinear

__all__ = ["LINEAR"]

LINEAR = LibraryLinear()

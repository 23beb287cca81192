"""AITER as an optional provider: rms norm and gated activations. Signatures as in ROCm/aiter: aiter/ops/rmsnorm.py (commit 0bc300f) and
aiter/ops/activation.py (commit 0f19c65)."""

from __future__ import annotations

from functools import partial

import aiter

from llmx.executor.torch.library import LibraryActMul, LibraryNorm, into

__all__ = ["ACT_MUL", "NORM"]

_FUNCTIONS = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}

NORM = LibraryNorm(lambda x, w, eps: aiter.rms_norm(x, w, eps))
ACT_MUL = LibraryActMul(lambda kind: partial(into, getattr(aiter, _FUNCTIONS[kind])))

"""vllm-xpu-kernels as an optional provider: rms norm and gated activations, which it registers as operators of torch. Signatures as in
vllm-project/vllm-xpu-kernels: tests/register_ops.py (commit 00b1e07)."""

from __future__ import annotations

from functools import partial

import vllm_xpu_kernels._C  # noqa: F401 - registers the operators

from llmx.executor.torch.library import LibraryActMul, LibraryNorm, into, into_like, registered

__all__ = ["ACT_MUL", "NORM"]

_FUNCTIONS = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}

NORM = LibraryNorm(partial(into_like, registered("_C", "rms_norm")))
ACT_MUL = LibraryActMul(lambda kind: partial(into, registered("_C", _FUNCTIONS[kind])))

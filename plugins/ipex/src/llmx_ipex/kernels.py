"""Adapters to Intel Extension for PyTorch 2.8.0: functions of llm/functional/fusions.py, in float32."""

from __future__ import annotations

from functools import partial

import intel_extension_for_pytorch as ipex
import torch

from llmx.executor.torch.kernel import Tensor
from llmx.executor.torch.library import LibraryActMul, LibraryNorm

__all__ = ["ACT_MUL", "NORM"]


def _gated(kind: str, x: Tensor) -> Tensor:
    gate, up = (half.contiguous() for half in x.chunk(2, -1))
    if kind == "silu":
        made: Tensor = ipex.llm.functional.silu_mul(gate, up)
    else:
        made = ipex.llm.functional.gelu_mul(gate, up, approximate="tanh" if kind == "gelu_tanh" else "none")
    return made


NORM = LibraryNorm(lambda x, w, eps: ipex.llm.functional.rms_norm(x, w, eps), torch.float32)
ACT_MUL = LibraryActMul(lambda kind: partial(_gated, kind), torch.float32)

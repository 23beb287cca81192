"""FlashInfer as an optional provider: rms norm, gated activations, attention over pages. Signatures as in flashinfer-python 0.7.4: norm/__init__.py,
activation.py, and BatchPrefillWithPagedKVCacheWrapper of prefill.py, whose `plan` looks at the lengths on the host, once per layer and step."""

from __future__ import annotations

from typing import Any

import flashinfer

from llmx.executor.torch.library import LibraryActMul, LibraryAttention, LibraryNorm, PagedRows
from llmx.program.attrs import AttnSpec

__all__ = ["ACT_MUL", "ATTENTION", "NORM"]

_FUNCTIONS = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}
_SCRATCH = 128 << 20  # what FlashInfer's documentation recommends for its float workspace


class _Paged:
    """One layer's attention, in shared scratch memory."""

    def __init__(self, scratch: Any) -> None:
        self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch, kv_layout="NHD")

    def __call__(self, s: AttnSpec, q: Any, pages: tuple[Any, Any], rows: PagedRows) -> Any:
        """q [T, H, D] over pages of keys and values."""
        self._wrapper.plan(
            rows.starts, rows.ends, rows.pages, rows.last, s.q_heads, s.kv_heads, s.head_dim, pages[0].shape[1], causal=True, sm_scale=s.scale,
            window_left=-1 if s.window is None else s.window - 1, logits_soft_cap=s.soft_cap, q_data_type=q.dtype, kv_data_type=pages[0].dtype,
        )  # fmt: skip
        return self._wrapper.run(q, pages)


NORM = LibraryNorm(lambda x, w, eps: flashinfer.rmsnorm(x, w, eps))
ACT_MUL = LibraryActMul(lambda kind: getattr(flashinfer, _FUNCTIONS[kind]))
ATTENTION = LibraryAttention(_Paged, _SCRATCH)

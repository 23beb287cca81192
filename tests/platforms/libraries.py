"""Stand-ins for optional libraries of kernels: the functions that llmx calls, with the parameters that the published ones have, computed with torch.

flashinfer-python 0.7.4: flashinfer/norm/__init__.py, activation.py, prefill.py. flash-attn 2.8.3: flash_attn/flash_attn_interface.py.
AITER: ROCm/aiter, aiter/ops/rmsnorm.py (0bc300f), activation.py (0f19c65).
vllm-xpu-kernels: tests/register_ops.py (00b1e07), operators of torch. intel-extension-for-pytorch 2.8.0: llm/functional/fusions.py.
"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

__all__ = ["CALLS", "FUSIONS", "WRAPPER", "flash_attn_varlen_func", "install", "rmsnorm", "silu_and_mul"]

CALLS: list[str] = []
Tensor = torch.Tensor


def _seen(name: str, *tensors: Tensor, dtype: torch.dtype = torch.bfloat16) -> None:
    assert all(t.dtype == dtype and t.is_contiguous() for t in tensors), name
    CALLS.append(name)


def rmsnorm(input: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """FlashInfer's."""
    _seen("norm", input, weight)
    x = input.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()).to(input.dtype)


def silu_and_mul(input: Tensor, out: Tensor | None = None, enable_pdl: bool | None = None) -> Tensor:
    """FlashInfer's."""
    _seen("act_mul", input)
    gate, up = input.float().chunk(2, -1)
    return (F.silu(gate) * up).to(input.dtype)


class WRAPPER:
    """FlashInfer's BatchPrefillWithPagedKVCacheWrapper."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
        head_dim_qk: int, page_size: int, *, causal: bool = False, sm_scale: float | None = None, window_left: int = -1,
        logits_soft_cap: float | None = None, q_data_type: Any = "float16", kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        tables = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(t.dtype == torch.int32 and t.ndim == 1 for t in tables) and len(paged_kv_indices) == paged_kv_indptr[-1]
        assert causal and window_left == -1 and not logits_soft_cap and q_data_type == kv_data_type == torch.bfloat16
        self.tables, self.page, self.scale, self.share = tables, page_size, sm_scale, num_qo_heads // num_kv_heads

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        _seen("attention", q, *paged_kv_cache)
        rows, ends, pages, last = self.tables
        outs = []
        for i in range(len(last)):
            own = pages[ends[i] : ends[i + 1]].long()
            length = (len(own) - 1) * self.page + int(last[i])
            k, v = (cache[own].flatten(0, 1)[:length].float().repeat_interleave(self.share, 1) for cache in paged_kv_cache)
            x = q[rows[i] : rows[i + 1]].float()
            mask = torch.arange(length)[None] <= torch.arange(length - len(x), length)[:, None]
            scores = torch.einsum("thd,shd->hts", x, k) * self.scale
            outs.append(torch.einsum("hts,shd->thd", scores.masked_fill(~mask, -torch.inf).softmax(-1), v))
        return torch.cat(outs).to(q.dtype)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    """FlashAttention's, of rows one behind the other; the causal mask ends at the bottom right."""
    _seen("attention", q, k, v)
    assert causal and softcap == 0.0 and all(t.dtype == torch.int32 and t[0] == 0 for t in (cu_seqlens_q, cu_seqlens_k))
    assert (len(q), len(k)) == (cu_seqlens_q[-1], cu_seqlens_k[-1]) and (max_seqlen_q, max_seqlen_k) == tuple(
        int(t.diff().max()) for t in (cu_seqlens_q, cu_seqlens_k)
    )
    outs, share = [], q.shape[1] // k.shape[1]
    for i in range(len(cu_seqlens_q) - 1):
        x = q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]].float()
        own = slice(int(cu_seqlens_k[i]), int(cu_seqlens_k[i + 1]))
        keys, values = (t[own].float().repeat_interleave(share, 1) for t in (k, v))
        behind = torch.arange(len(keys) - len(x), len(keys))[:, None] - torch.arange(len(keys))[None]
        mask = (behind >= 0) & ((window_size[0] < 0) | (behind <= window_size[0]))
        scores = torch.einsum("thd,shd->hts", x, keys) * softmax_scale
        outs.append(torch.einsum("hts,shd->thd", scores.masked_fill(~mask, -torch.inf).softmax(-1), values))
    return torch.cat(outs).to(q.dtype)


class FUSIONS:
    """intel_extension_for_pytorch.llm.functional."""

    @staticmethod
    def rms_norm(hidden_states: Tensor, weight: Tensor, eps: float) -> Tensor:
        _seen("norm", hidden_states, weight, dtype=torch.float32)
        return F.rms_norm(hidden_states, weight.shape, weight, eps)

    @staticmethod
    def silu_mul(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
        _seen("act_mul", x, y, dtype=torch.float32)
        return F.silu(x) * y

    @staticmethod
    def gelu_mul(x: Tensor, y: Tensor, out: Tensor | None = None, approximate: str = "none") -> Tensor:
        _seen("act_mul", x, y, dtype=torch.float32)
        return F.gelu(x, approximate=approximate) * y


def _filled_norm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float) -> None:
    out.copy_(rmsnorm(input, weight, epsilon))


def _filled_act(out: Tensor, input: Tensor) -> None:
    out.copy_(silu_and_mul(input))


def install(patch: pytest.MonkeyPatch, name: str) -> None:
    """Put the stand-in of a library where `import name` finds it."""

    def module(path: str, **members: Any) -> None:
        made = ModuleType(path)
        made.__spec__ = importlib.machinery.ModuleSpec(path, None)
        made.__dict__.update(members)
        patch.setitem(sys.modules, path, made)

    CALLS.clear()
    if name == "flashinfer":
        module(name, rmsnorm=rmsnorm, silu_and_mul=silu_and_mul, BatchPrefillWithPagedKVCacheWrapper=WRAPPER)
    elif name == "flash_attn":
        module(name, flash_attn_varlen_func=flash_attn_varlen_func)
    elif name == "intel_extension_for_pytorch":
        module(name, llm=type("llm", (), {"functional": FUSIONS}))
    elif name == "aiter":
        module(name, rms_norm=lambda input, weight, epsilon, use_model_sensitive_rmsnorm=0: rmsnorm(input, weight, epsilon), silu_and_mul=_filled_act)
    else:
        module(name)
        module(f"{name}._C")
        patch.setattr(torch.ops, "_C", type("_C", (), {"rms_norm": staticmethod(_filled_norm), "silu_and_mul": staticmethod(_filled_act)}), raising=False)

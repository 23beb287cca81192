"""FlashAttention 2 as an optional provider of attention over pages. Signature as in flash-attn 2.8.3: flash_attn_varlen_func of
flash_attn/flash_attn_interface.py.

Its paged form takes pages of whole 256 tokens, and those of llmx have 16: keys and values of the step's requests are gathered first.
"""

from __future__ import annotations

from typing import Any

import flash_attn

from llmx.executor.torch.library import LibraryAttention, PagedRows
from llmx.program.attrs import AttnSpec

__all__ = ["ATTENTION"]


class _Gathered:
    """One layer's attention."""

    def __init__(self, scratch: Any) -> None:
        pass

    def __call__(self, s: AttnSpec, q: Any, pages: tuple[Any, Any], rows: PagedRows) -> Any:
        """q [T, H, D] over pages of keys and values."""
        (keys, values), ends = rows.gathered(*pages)
        return flash_attn.flash_attn_varlen_func(
            q, keys, values, rows.starts, ends, int(rows.starts.diff().max()), int(ends.diff().max()), softmax_scale=s.scale, causal=True,
            window_size=(-1 if s.window is None else s.window - 1, -1 if s.window is None else 0), softcap=s.soft_cap or 0.0,
        )  # fmt: skip


ATTENTION = LibraryAttention(_Gathered, 0)

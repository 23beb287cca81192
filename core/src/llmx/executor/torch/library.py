"""Adapters between ops and functions of an optional library, in bfloat16 or a type that is named. What such a function takes: llmx.platform.libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from llmx.executor.base import Limits
from llmx.executor.torch.kernel import Call, Spec, Tensor
from llmx.executor.torch.layout import RowLayout
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.program.attrs import AttnSpec
from llmx.record import record

__all__ = ["LibraryActMul", "LibraryAttention", "LibraryLinear", "LibraryNorm", "PagedCall", "PagedRows", "into", "into_like", "registered"]


def registered(namespace: str, name: str) -> Callable[..., Any]:
    """An operator that a library has registered with torch."""
    found: Callable[..., Any] = getattr(getattr(torch.ops, namespace), name)
    return found


def into_like(fill: Callable[..., Any], x: Tensor, *others: Any) -> Tensor:
    """The result of a function (out, x, ...) of x's shape, in new memory."""
    out = torch.empty_like(x)
    fill(out, x, *others)
    return out


def into(fill: Callable[[Tensor, Tensor], Any], x: Tensor) -> Tensor:
    """The result of a function (out, x) that halves the last axis, in new memory."""
    out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    fill(out, x)
    return out


def _half(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return x.to(dtype).contiguous()


@record
class LibraryNorm:
    """The op norm. function: (x [T, H], weight [H], eps) -> [T, H], all of `dtype`."""

    function: Callable[[Tensor, Tensor, float], Tensor]
    dtype: torch.dtype = torch.bfloat16

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> Tensor:
        """The scale, in `dtype`."""
        return _half(weights.dense("w.0"), self.dtype)

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """None."""
        return 0

    def bind(self, spec: Spec, packed: Tensor, states: tuple[StatePages, ...]) -> Call:
        """The call with its scale."""
        assert not isinstance(spec, tuple)
        eps = spec.attrs.eps
        return lambda rows, x: self.function(_half(x, self.dtype).flatten(0, -2), packed, eps).float().view(x.shape)


@record
class LibraryActMul:
    """The op act_mul. functions: by activation, x [T, 2 F] -> [T, F], both of `dtype`."""

    functions: Callable[[str], Callable[[Tensor], Tensor]]
    dtype: torch.dtype = torch.bfloat16

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> None:
        """Nothing."""

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """None."""
        return 0

    def bind(self, spec: Spec, packed: None, states: tuple[StatePages, ...]) -> Call:
        """The call with its function."""
        assert not isinstance(spec, tuple)
        function = self.functions(spec.attrs.kind)
        return lambda rows, x: function(_half(x, self.dtype)).float()


@record
class LibraryLinear:
    """The op linear, of weights stored in bfloat16. function: (x [T, K], w [N, K], bias [N] or None) -> [T, N], all of bfloat16."""

    function: Callable[[Tensor, Tensor, Tensor | None], Tensor] = torch.nn.functional.linear

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of each Part, without a float32 copy of the weight."""
        found = []
        for key in (key for key in weights if not key.endswith(".bias")):
            stored = np.ascontiguousarray(weights[key].data).view(np.int16)
            bias = _half(weights.dense(f"{key}.bias")) if f"{key}.bias" in weights else None
            found.append((torch.from_numpy(stored).to(weights.device, copy=True).view(torch.bfloat16), bias))
        return found

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """None."""
        return 0

    def bind(self, spec: Spec, packed: list[tuple[Tensor, Tensor | None]], states: tuple[StatePages, ...]) -> Call:
        """The call with its weights."""
        return lambda rows, x: torch.cat([self.function(_half(x), *part) for part in packed], -1).float()


@record
class PagedRows:
    """Whose rows a step has, and their pages one behind the other, i32: starts [N + 1] of the rows, ends [N + 1] of the pages, pages [ends[N]],
    last [N]: tokens in the last page of each request."""

    starts: Tensor
    ends: Tensor
    pages: Tensor
    last: Tensor

    @classmethod
    def of(cls, layout: RowLayout, group: int, block_tokens: int) -> PagedRows:
        """Of a layout in which every request has rows."""
        table, counts = layout.tables[group], (layout.lengths + block_tokens - 1) // block_tokens
        ends = torch.zeros(len(counts) + 1, dtype=torch.int32, device=table.device)
        ends[1:] = counts.cumsum(0)
        used = torch.arange(table.shape[1], device=table.device)[None] < counts[:, None]
        return cls(layout.starts, ends, table[used], layout.lengths - (counts - 1) * block_tokens)

    def gathered(self, *pages: Tensor) -> tuple[list[Tensor], Tensor]:
        """(of each tensor [blocks, block tokens, ...] all requests' tokens one behind the other, i32 [N + 1]: where each request's begin, and the end)."""
        tokens = pages[0].shape[1]
        filled = torch.full_like(self.pages, tokens)
        filled[self.ends[1:].long() - 1] = self.last.to(filled.dtype)  # of every page, how many tokens are there
        kept = torch.arange(tokens, device=filled.device)[None] < filled[:, None]
        ends = torch.zeros_like(self.starts)
        ends[1:] = (self.ends.diff() * tokens - tokens + self.last).cumsum(0)
        return [tensor[self.pages.long()][kept] for tensor in pages], ends


class PagedCall(Protocol):
    """Attention of bf16 rows q [T, H, D] over pages [blocks, block tokens, K, D] of keys and values -> [T, H, D]."""

    def __call__(self, s: AttnSpec, q: Tensor, pages: tuple[Tensor, Tensor], rows: PagedRows) -> Tensor:
        """One layer of one step."""
        ...


@record
class LibraryAttention:
    """The op attention. make: gives the call for one op, of scratch memory u8 [scratch]."""

    make: Callable[[Tensor], PagedCall]
    scratch: int

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> PagedCall:
        """The call; all ops share the memory."""
        return self.make(weights.constant(("library", self.scratch), lambda: np.zeros(self.scratch, np.uint8)))

    def workspace(self, spec: Spec, limits: Limits) -> int:
        """Nothing beside the shared memory, which is counted with the weights."""
        return 0

    def bind(self, spec: Spec, packed: PagedCall, states: tuple[StatePages, ...]) -> Call:
        """The call with its pages."""
        assert not isinstance(spec, tuple)
        s, state = spec.attrs.spec, states[0]
        keys, values = state.tensors

        def call(rows: Rows, q: Tensor, *own: Tensor | None) -> Tensor:
            paged = PagedRows.of(rows.layout, state.group, state.block_tokens)
            return packed(s, _half(q), (keys, values), paged).float().flatten(1)

        return call

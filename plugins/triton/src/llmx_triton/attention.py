"""Attention over pages: prompts, decode and both in one step. A program takes a few consecutive rows of one request with all query heads of one kv head.

Few rows are split along the keys, so that one long request fills the device: each part leaves its maximum, its sum and its values, and a second
program joins them. Everything is float32.
"""

import torch
import triton
import triton.language as tl

from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx_triton.launch import Tiles, power_of_two
from llmx_triton.weightless import Kept

__all__ = ["Attention"]

_ROWS = 16  # of a program: tokens times query heads of a kv head, at least
_KEYS = 32  # at a time
_SPLITS = 4  # parts of the keys where a step has few rows
_FEW = 64  # rows: above it there are programs enough


@triton.jit
def _request_of(starts, requests, program, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The request that a program works for: request i has programs from starts[i] // TOKENS + i on."""
    low, high = 0, requests
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts + middle) // TOKENS + middle <= program:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _steps_of(first, length, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, TOKENS: tl.constexpr, KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(first step, number of steps) of KEYS keys that rows at positions from `first` on may see."""
    lowest = tl.maximum(first - WINDOW + 1, 0) if WINDOW else 0
    if CHUNK and CAUSAL:
        lowest = tl.maximum(first // CHUNK * CHUNK, lowest)
    last = tl.minimum(length, first + TOKENS) if CAUSAL else length
    return lowest // KEYS, (last + KEYS - 1) // KEYS - lowest // KEYS


@triton.jit
def _seen(position, j, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which of the keys at j each row at `position` sees."""
    i, j = position[:, None], j[None, :]
    seen = (j <= i) if CAUSAL else (j >= 0) & (i >= 0)
    if WINDOW:
        seen = seen & (i - j < WINDOW)
    if CHUNK:
        seen = seen & (i // CHUNK == j // CHUNK)
    return seen


@Tiles
def _attend(  # type: ignore[no-untyped-def]
    q, k_pages, v_pages, table, starts, lengths, sinks, part, top, total, requests, blocks, scale, cap,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, V: tl.constexpr, V_STEP: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, CAUSAL: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr, SPLITS: tl.constexpr,
    TOKENS: tl.constexpr, KEYS: tl.constexpr,
    M: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    program, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request = _request_of(starts, requests, program, TOKENS)
    begin, length = tl.load(starts + request), tl.load(lengths + request)
    count = tl.load(starts + request + 1) - begin
    first = (program - begin // TOKENS - request) * TOKENS  # of the program's tokens, among the request's
    if first < count:
        m, d, v = tl.arange(0, M), tl.arange(0, BD), tl.arange(0, BV)
        token, head = first + m // (HEADS // KV), kv * (HEADS // KV) + m % (HEADS // KV)
        real = (m // (HEADS // KV) < TOKENS) & (token < count)
        to = (begin + token).to(tl.int64) * HEADS + head
        rows = tl.load(q + to[:, None] * D + d[None, :], mask=real[:, None] & (d < D)[None, :], other=0.0)
        lowest, steps = _steps_of(length - count + first, length, CAUSAL, WINDOW, CHUNK, TOKENS, KEYS)
        each = (steps + SPLITS - 1) // SPLITS
        best = tl.full([M], float("-inf"), tl.float32)
        weight, sums = tl.zeros([M], tl.float32), tl.zeros([M, BV], tl.float32)
        for step in range(lowest + split * each, tl.minimum(lowest + (split + 1) * each, lowest + steps)):
            j = step * KEYS + tl.arange(0, KEYS)
            there = j < length
            page = tl.load(table + request * blocks + j // PAGE, mask=there, other=0).to(tl.int64)
            place = (page * PAGE + j % PAGE) * KV + kv
            keys = tl.load(k_pages + place[None, :] * D + d[:, None], mask=there[None, :] & (d < D)[:, None], other=0.0).to(tl.float32)
            scores = tl.dot(rows, keys, input_precision="ieee") * scale
            if CAP:  # tanh(z) = 2 sigmoid(2 z) - 1
                scores = cap * (2.0 * tl.sigmoid(2.0 * scores / cap) - 1.0)
            seen = _seen(length - count + token, j, CAUSAL, WINDOW, CHUNK) & there[None, :] & real[:, None]
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, 1))
            safe = tl.where(higher == float("-inf"), 0.0, higher)  # a row that saw nothing yet
            shares, kept = tl.exp(scores - safe[:, None]), tl.exp(best - safe)
            values = tl.load(v_pages + place[:, None] * V_STEP + v[None, :], mask=there[:, None] & (v < V)[None, :], other=0.0).to(tl.float32)
            weight, best = weight * kept + tl.sum(shares, 1), higher
            sums = sums * kept[:, None] + tl.dot(shares, values, input_precision="ieee")
        if SINKS and split == 0:  # one more key, which takes its share and gives nothing
            sink = tl.load(sinks + head, mask=real, other=0.0)
            higher = tl.maximum(best, sink)
            weight, sums = weight * tl.exp(best - higher) + tl.exp(sink - higher), sums * tl.exp(best - higher)[:, None]
            best = higher
        if SPLITS == 1:
            sums = sums / tl.where(weight == 0.0, 1.0, weight)[:, None]
        to = split * total * HEADS + to
        tl.store(top + to * 2, best, mask=real)
        tl.store(top + to * 2 + 1, weight, mask=real)
        tl.store(part + to[:, None] * V + v[None, :], sums, mask=real[:, None] & (v < V)[None, :])


@Tiles
def _join(part, top, out, total, heads, V: tl.constexpr, SPLITS: tl.constexpr, BV: tl.constexpr):  # type: ignore[no-untyped-def]
    one = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    v = tl.arange(0, BV)
    best = float("-inf")
    for split in tl.static_range(SPLITS):
        best = tl.maximum(best, tl.load(top + (split * total * heads + one) * 2))
    weight, sums = 0.0, tl.zeros([BV], tl.float32)
    for split in tl.static_range(SPLITS):
        at = split * total * heads + one
        own = tl.load(top + at * 2)
        share = tl.where(own == float("-inf"), 0.0, tl.exp(own - tl.where(best == float("-inf"), 0.0, best)))
        weight += share * tl.load(top + at * 2 + 1)
        sums += share * tl.load(part + at * V + v, mask=v < V, other=0.0)
    tl.store(out + one * V + v, sums / tl.where(weight == 0.0, 1.0, weight), mask=v < V)


@torch.library.custom_op("llmx_triton::paged_attention", mutates_args=())
def paged_attention(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, causal: bool, window: int, chunk: int, cap: float,
) -> torch.Tensor:  # fmt: skip
    """[T, H V] of q [T, H, D] over pages [blocks, block tokens, K, D or V]. window, chunk and cap: 0 without. See RowLayout for the others.

    v_pages may be a part of wider rows (a slice of the last axis).
    """
    q = q.contiguous()
    total, heads, d = q.shape
    page, kv, wide = v_pages.shape[1:]
    group, few = heads // kv, total <= _FEW
    tokens = max(_ROWS // group, 1)
    splits = _SPLITS if few else 1
    part = q.new_zeros((splits, total, heads, wide))
    top = q.new_zeros((splits, total, heads, 2))  # per part and row: the largest score, and the sum of shares
    top[..., 0] = float("-inf")
    _attend.launch(
        (total // tokens + len(lengths) if total else 0, kv, splits), q, q, k_pages, v_pages, table, starts, lengths, q if sinks is None else sinks, part, top,
        total, len(lengths), table.shape[1], scale, cap,
        HEADS=heads, KV=kv, D=d, V=wide, V_STEP=v_pages.stride(2), PAGE=page,
        WINDOW=window, CHUNK=chunk, CAUSAL=causal, CAP=cap != 0.0, SINKS=sinks is not None, SPLITS=splits,
        TOKENS=tokens, KEYS=_KEYS, M=power_of_two(tokens * group, _ROWS), BD=power_of_two(d, 16), BV=power_of_two(wide, 16),
    )  # fmt: skip
    if not few:
        return part[0].flatten(1)
    out = q.new_empty((total, heads, wide))
    _join.launch((total, heads), q, part, top, out, total, heads, V=wide, SPLITS=splits, BV=power_of_two(wide))
    return out.flatten(1)


class Attention(Kept):
    """The op attention."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> torch.Tensor | None:  # type: ignore[override]
        """The sinks, float32 per head."""
        return weights.dense("sinks.0") if "sinks.0" in weights else None

    def bind(self, spec: Spec, packed: torch.Tensor | None, states: tuple[StatePages, ...]) -> Call:
        """The call with its pages and constants."""
        assert not isinstance(spec, tuple)
        s, state = spec.attrs.spec, states[0]
        k_pages, v_pages = state.tensors
        causal, window, chunk, cap = s.mask == "causal", s.window or 0, s.chunk or 0, s.soft_cap or 0.0

        def call(rows: Rows, q: torch.Tensor, *own: torch.Tensor | None) -> torch.Tensor:
            layout = rows.layout
            return paged_attention(q, k_pages, v_pages, layout.tables[state.group], layout.starts, layout.lengths, packed, s.scale, causal, window, chunk, cap)

        return call

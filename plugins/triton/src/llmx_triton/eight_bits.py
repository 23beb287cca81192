"""Products of 8 bits by 8 bits: each row is rounded to int8 in runs of 32 with a scale each (as QuantKey.act of these weights says), products of codes are
whole numbers, and a run's sum is scaled once. Rounding and product are two programs; every program of the product reads the same codes."""


import numpy as np
import torch
import triton.language as tl

from llmx.executor import HostTensor
from llmx.record import record
from llmx_triton.launch import Tiles
from llmx_triton.products import COLUMNS, parts_in_groups, product_grid

__all__ = ["EightPart", "eight_part", "eight_product"]

_RUN = 32  # inputs with one scale


@Tiles
def _round(x, codes, scales, depth, RUN: tl.constexpr):  # type: ignore[no-untyped-def]
    run = tl.program_id(0).to(tl.int64)
    at = run * RUN + tl.arange(0, RUN)
    values = tl.load(x + at)
    scale = tl.max(tl.abs(values), 0) / 127.0
    exact = values / tl.where(scale == 0.0, 1.0, scale)
    tl.store(codes + at, tl.floor(exact + 0.5).to(tl.int8))
    tl.store(scales + run, scale)


@Tiles
def _product(  # type: ignore[no-untyped-def]
    given, given_scales, codes, scales, bias, y, rows, columns, depth, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    RUN: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    row, column = m.to(tl.int64), n.to(tl.int64)
    in_m, in_n = m < rows, n < columns
    each, runs = tl.arange(0, RUN), depth // RUN
    sums = tl.zeros([BM, BN], tl.float32)
    for run in range(runs):
        k = run * RUN + each
        a = tl.load(given + row[:, None] * depth + k[None, :], mask=in_m[:, None], other=0)
        b = tl.load(codes + column[None, :] * depth + k[:, None], mask=in_n[None, :], other=0)
        own = tl.load(given_scales + row * runs + run, mask=in_m, other=0.0)
        scale = tl.load(scales + run * RUN // GROUP * columns + column, mask=in_n, other=0.0).to(tl.float32)
        sums += tl.dot(a, b, out_dtype=tl.int32).to(tl.float32) * own[:, None] * scale[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=in_n, other=0.0)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], sums, mask=in_m[:, None] & in_n[None, :])


@torch.library.custom_op("llmx_triton::eight_product", mutates_args=())
def eight_product(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, group: int) -> torch.Tensor:
    """[T, N] of x [T, K], codes i8 [N, K] and scales f16 [K / group, N]; K is whole runs of 32."""
    x = x.contiguous()
    rows, depth = x.shape
    columns, runs = len(codes), depth // _RUN
    y, given = x.new_empty((rows, columns)), torch.empty_like(x, dtype=torch.int8)
    given_scales = x.new_empty((rows, runs))
    _round.launch((rows * runs,), x, x, given, given_scales, depth, RUN=_RUN)
    height, grid = product_grid(rows, columns)
    _product.launch(
        grid, x, given, given_scales, codes, scales, x if bias is None else bias, y, rows, columns, depth, GROUP=group, HAS_BIAS=bias is not None,
        BM=height, BN=COLUMNS, RUN=_RUN,
    )  # fmt: skip
    return y


@record
class EightPart:
    """One Part of a linear, as `eight_product` takes it."""

    codes: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None
    group: int

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """[T, N] of x [T, K]."""
        y: torch.Tensor = eight_product(x, self.codes, self.scales, self.bias, self.group)
        return y


def eight_part(tensor: HostTensor, bias: torch.Tensor | None, device: torch.device) -> EightPart:
    """A matrix [N, K] of int8 codes in groups."""
    codes, scales, _, _, group = parts_in_groups(tensor)
    kept = [torch.from_numpy(np.ascontiguousarray(values)).to(device, copy=True) for values in (codes, scales.T)]
    return EightPart(kept[0], kept[1], bias, group)

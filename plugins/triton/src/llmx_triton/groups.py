"""linear with weights in groups of 4 or 8 bits, as GPTQ and AWQ checkpoints have them: codes packed along the input in int32 words [K bits / 32, N], which is
how GPTQ stores them and what lets neighbouring programs read neighbouring words; AWQ matrices come in the same form from the checkpoint's reader."""


import numpy as np
import torch
import triton.language as tl

from llmx.executor import BLOCK_BYTES, HostTensor
from llmx.executor.op_weights import parts_of
from llmx.record import record
from llmx_triton.launch import Tiles, power_of_two

__all__ = ["GroupPart", "group_part", "group_product"]

_DEPTH = 32  # inputs at a time: no group is smaller
_COLUMNS = 32  # outputs of a program
_MOST_ROWS = 64  # rows of a program


@Tiles
def _product(  # type: ignore[no-untyped-def]
    x, words, scales, zeros, bias, y, rows, columns, depth,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    row, column = m.to(tl.int64), n.to(tl.int64)
    in_m, in_n = m < rows, n < columns
    each = tl.arange(0, BK)
    per = 32 // BITS
    sums = tl.zeros([BM, BN], tl.float32)
    for step in range(depth // BK):
        k = step * BK + each
        given = tl.load(x + row[:, None] * depth + k[None, :], mask=in_m[:, None], other=0.0)
        word = tl.load(words + (k // per).to(tl.int64)[:, None] * columns + column[None, :], mask=in_n[None, :], other=0)
        code = (word >> ((k % per) * BITS)[:, None]) & ((1 << BITS) - 1)
        group = step * BK // GROUP * columns + column
        scale = tl.load(scales + group, mask=in_n, other=0.0).to(tl.float32)
        if HAS_ZEROS:
            code = code - tl.load(zeros + group, mask=in_n, other=0).to(tl.int32)[None, :]
        else:
            code = code - ZERO
        sums += tl.dot(given, code.to(tl.float32) * scale[None, :], input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=in_n, other=0.0)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], sums, mask=in_m[:, None] & in_n[None, :])


@torch.library.custom_op("llmx_triton::group_product", mutates_args=())
def group_product(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bias: torch.Tensor | None, bits: int, group: int
) -> torch.Tensor:
    """[T, N] of x [T, K], words i32 [K bits / 32, N], scales f16 and zeros u8 [K / group, N]. Without zeros the middle code means 0."""
    x = x.contiguous()
    rows, depth = x.shape
    columns = words.shape[1]
    y = x.new_empty((rows, columns))
    height = min(power_of_two(rows, 16), _MOST_ROWS)
    _product.launch(
        (-(-rows // height), -(-columns // _COLUMNS)), x, x, words, scales, x if zeros is None else zeros, x if bias is None else bias, y, rows, columns, depth,
        BITS=bits, GROUP=group, ZERO=1 << (bits - 1), HAS_ZEROS=zeros is not None, HAS_BIAS=bias is not None, BM=height, BN=_COLUMNS, BK=_DEPTH,
    )  # fmt: skip
    return y


@record
class GroupPart:
    """One Part of a linear, as `group_product` takes it."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: torch.Tensor | None
    bits: int
    group: int

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """[T, N] of x [T, K]."""
        y: torch.Tensor = group_product(x, self.words, self.scales, self.zeros, self.bias, self.bits, self.group)
        return y


def group_part(tensor: HostTensor, bias: torch.Tensor | None, device: torch.device) -> GroupPart:
    """A matrix [N, K] in groups, with its codes packed along the input."""
    codes, scales, zeros = parts_of(tensor.dtype, tensor.data)
    bits = 8 if codes.dtype == np.int8 else 4
    stored = (codes.view(np.uint8) ^ 0x80 if bits == 8 else codes).T.astype(np.uint32)
    words = np.zeros((stored.shape[0] * bits // 32, stored.shape[1]), np.uint32)
    for place in range(32 // bits):
        words |= stored[place :: 32 // bits] << np.uint32(place * bits)

    def kept(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device, copy=True)

    offsets = kept(zeros.T.astype(np.uint8)) if tensor.dtype.startswith("int4z") else None
    return GroupPart(kept(words.view(np.int32)), kept(scales.T.astype(np.float16)), offsets, bias, bits, BLOCK_BYTES[tensor.dtype][0])

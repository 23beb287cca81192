"""Products with weights of 4 and 8 bits in groups along the input, each with a scale, perhaps a zero point, or a least value. One program reads all of them.

Codes lie in int32 words in one of two orders: along the input [K bits / 32, N], as GPTQ stores them, or, those of 4 bits, along the output [K, N / 8] in
AWQ's order of eight, as AWQ stores them. Blocks of GGUF files are groups of 32, brought into the first order when they are loaded.
"""


import numpy as np
import torch
import triton.language as tl

from llmx.executor import BLOCK_BYTES, HostTensor
from llmx.executor.op_weights import AS_BLOCKS, parts_of
from llmx.record import record
from llmx_triton.launch import Tiles, power_of_two

__all__ = ["COLUMNS", "GroupPart", "group_part", "group_product", "parts_in_groups", "product_grid"]

_DEPTH = 32  # inputs at a time: no group is smaller
COLUMNS = 32  # outputs of a program
_MOST_ROWS = 64  # rows of a program
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs lies in bits 4 i of its word


def product_grid(rows: int, columns: int) -> tuple[int, tuple[int, int]]:
    """(rows of a program, grid) of a product [rows, columns]."""
    height = min(power_of_two(rows, 16), _MOST_ROWS)
    return height, (-(-rows // height), -(-columns // COLUMNS))


@Tiles
def _product(  # type: ignore[no-untyped-def]
    x, words, scales, zeros, mins, bias, y, rows, columns, depth,
    BITS: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr, AWQ: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINS: tl.constexpr, HAS_BIAS: tl.constexpr,
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
        if AWQ:  # of eight outputs the even ones come first
            word = tl.load(words + k.to(tl.int64)[:, None] * (columns // 8) + (column // 8)[None, :], mask=in_n[None, :], other=0)
            code = (word >> ((n % 2 * 4 + n % 8 // 2) * 4)[None, :]) & 15
        else:
            word = tl.load(words + (k // per).to(tl.int64)[:, None] * columns + column[None, :], mask=in_n[None, :], other=0)
            code = (word >> ((k % per) * BITS)[:, None]) & ((1 << BITS) - 1)
        group = step * BK // GROUP * columns + column
        scale = tl.load(scales + group, mask=in_n, other=0.0).to(tl.float32)
        if HAS_ZEROS:
            code = code - tl.load(zeros + group, mask=in_n, other=0).to(tl.int32)[None, :]
        else:
            code = code - ZERO
        weight = code.to(tl.float32) * scale[None, :]
        if HAS_MINS:
            weight += tl.load(mins + group, mask=in_n, other=0.0).to(tl.float32)[None, :]
        sums += tl.dot(given, weight, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=in_n, other=0.0)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], sums, mask=in_m[:, None] & in_n[None, :])


@torch.library.custom_op("llmx_triton::group_product", mutates_args=())
def group_product(
    x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, mins: torch.Tensor | None, bias: torch.Tensor | None,
    bits: int, group: int, zero: int, awq: bool,
) -> torch.Tensor:  # fmt: skip
    """[T, N] of x [T, K], words i32 in one of the two orders, scales and mins f16 and zeros u8 [K / group, N].

    A weight is scale (code - zero point) + min; without zeros the zero point is `zero`.
    """
    x = x.contiguous()
    rows, depth = x.shape
    columns = scales.shape[1]
    y = x.new_empty((rows, columns))
    height, grid = product_grid(rows, columns)
    _product.launch(
        grid, x, x, words, scales, x if zeros is None else zeros, x if mins is None else mins, x if bias is None else bias, y, rows, columns, depth,
        BITS=bits, GROUP=group, ZERO=zero, AWQ=awq, HAS_ZEROS=zeros is not None, HAS_MINS=mins is not None, HAS_BIAS=bias is not None,
        BM=height, BN=COLUMNS, BK=_DEPTH,
    )  # fmt: skip
    return y


@record
class GroupPart:
    """One Part of a linear, as `group_product` takes it."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    mins: torch.Tensor | None
    bias: torch.Tensor | None
    bits: int
    group: int
    zero: int
    awq: bool

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """[T, N] of x [T, K]."""
        y: torch.Tensor = group_product(x, self.words, self.scales, self.zeros, self.mins, self.bias, self.bits, self.group, self.zero, self.awq)
        return y


def parts_in_groups(tensor: HostTensor) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, int]:
    """(codes [N, K], u8 of 4 bits or i8; scales f16 [N, G]; zero points i16 [N, G]; least values f16 [N, G] or None; elements of a group) of a matrix."""
    if tensor.dtype in AS_BLOCKS:
        codes, scales, zeros = parts_of(tensor.dtype, tensor.data)
        return codes, scales.astype(np.float16), zeros, None, BLOCK_BYTES[tensor.dtype][0]
    group, size = BLOCK_BYTES[tensor.dtype]
    blocks = np.ascontiguousarray(tensor.data).reshape(tensor.rows, -1, size)
    halves = np.ascontiguousarray(blocks[:, :, : 4 if tensor.dtype == "q4_1" else 2]).view(np.float16)
    mins = halves[:, :, 1] if tensor.dtype == "q4_1" else None
    if tensor.dtype == "q8_0":
        codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8)
    else:
        runs = blocks[:, :, -group // 2 :]  # byte i of a block has the codes i and i + 16
        codes = np.concatenate((runs & 15, runs >> 4), axis=2)
    zeros = np.full(halves.shape[:2], 8 if tensor.dtype == "q4_0" else 0, np.int16)
    return codes.reshape(tensor.rows, -1), halves[:, :, 0], zeros, mins, group


def group_part(tensor: HostTensor, bias: torch.Tensor | None, device: torch.device) -> GroupPart:
    """A matrix [N, K] in groups. One with zero points, as AWQ makes them, keeps AWQ's order where its rows are whole eights."""
    codes, scales, zeros, mins, group = parts_in_groups(tensor)
    bits = 8 if codes.dtype == np.int8 else 4
    own_zeros = tensor.dtype.startswith("int4z")
    awq = own_zeros and len(codes) % 8 == 0
    stored = (codes.view(np.uint8) ^ 0x80 if bits == 8 else codes).astype(np.uint32)
    words = _joined(stored.reshape(-1, 8, stored.shape[1])[:, _AWQ_ORDER].reshape(stored.shape), 4).T if awq else _joined(stored.T, bits)

    def kept(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device, copy=True)

    offsets = kept(zeros.T.astype(np.uint8)) if own_zeros else None
    least = None if mins is None else kept(mins.T)
    return GroupPart(kept(words.view(np.int32)), kept(scales.T), offsets, least, bias, bits, group, 128 if bits == 8 else int(zeros.flat[0]), awq)


def _joined(values: np.ndarray, bits: int) -> np.ndarray:
    """u32 [A bits / 32, B] of values u32 [A, B]: neighbours of the first axis in one word, from the lowest bit on."""
    per = 32 // bits
    words = np.zeros((len(values) // per, values.shape[1]), np.uint32)
    for place in range(per):
        words |= values[place::per] << np.uint32(place * bits)
    return words

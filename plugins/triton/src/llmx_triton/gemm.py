"""linear with weights of 8 and 4 bits: codes are multiplied as they are stored, and scaled by blocks: here of 32, in `groups` those of GPTQ and AWQ."""


import numpy as np
import torch
import triton.language as tl

from llmx.executor import HostTensor
from llmx.executor.op_weights import AS_BLOCKS
from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.record import record
from llmx_triton.groups import GroupPart, group_part
from llmx_triton.launch import Tiles, power_of_two
from llmx_triton.weightless import Kept

__all__ = ["Linear"]

_BLOCK = 32  # weights with one scale
_COLUMNS = 32  # outputs of a program
_MOST_ROWS = 64  # rows of a program


@Tiles
def _product(  # type: ignore[no-untyped-def]
    x, codes, scales, mins, bias, y, rows, columns, depth,
    FOUR: tl.constexpr, ZERO: tl.constexpr, HAS_MIN: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    row, column = m.to(tl.int64), n.to(tl.int64)
    in_m, in_n = m < rows, n < columns
    sums = tl.zeros([BM, BN], tl.float32)
    half = tl.arange(0, 16)
    blocks = depth // 32
    for block in range(blocks):
        at = x + row[:, None] * depth + block * 32 + half[None, :]
        low = tl.load(at, mask=in_m[:, None], other=0.0)
        high = tl.load(at + 16, mask=in_m[:, None], other=0.0)
        if FOUR:  # byte i of a block has the codes i and i + 16
            packed = tl.load(codes + column[None, :] * (depth // 2) + block * 16 + half[:, None], mask=in_n[None, :], other=0).to(tl.int32)
            first, second = (packed & 15) - ZERO, (packed >> 4) - ZERO
        else:
            place = codes + column[None, :] * depth + block * 32 + half[:, None]
            first, second = tl.load(place, mask=in_n[None, :], other=0), tl.load(place + 16, mask=in_n[None, :], other=0)
        scale = tl.load(scales + column * blocks + block, mask=in_n, other=0.0)
        a = first.to(tl.float32) * scale[None, :]
        b = second.to(tl.float32) * scale[None, :]
        if HAS_MIN:
            least = tl.load(mins + column * blocks + block, mask=in_n, other=0.0)
            a, b = a + least[None, :], b + least[None, :]
        sums += tl.dot(low, a, input_precision="ieee") + tl.dot(high, b, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + n, mask=in_n, other=0.0)[None, :]
    tl.store(y + row[:, None] * columns + column[None, :], sums, mask=in_m[:, None] & in_n[None, :])


@torch.library.custom_op("llmx_triton::product", mutates_args=())
def product(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, mins: torch.Tensor | None, bias: torch.Tensor | None, zero: int, four: bool
) -> torch.Tensor:
    """[T, N] of x [T, K] and codes [N, K] (i8) or [N, K / 2] (u8), scales and mins [N, K / 32]. zero: what is taken from each code of 4 bits."""
    x = x.contiguous()
    rows, depth = x.shape
    columns = codes.shape[0]
    y = x.new_empty((rows, columns))
    height = min(power_of_two(rows, 16), _MOST_ROWS)
    _product.launch(
        (-(-rows // height), -(-columns // _COLUMNS)), x, x, codes, scales, x if mins is None else mins, x if bias is None else bias, y, rows, columns, depth,
        FOUR=four, ZERO=zero, HAS_MIN=mins is not None, HAS_BIAS=bias is not None, BM=height, BN=_COLUMNS,
    )  # fmt: skip
    return y


@record
class _Part:
    """One Part of a linear, as `product` takes it."""

    codes: torch.Tensor
    scales: torch.Tensor
    mins: torch.Tensor | None
    bias: torch.Tensor | None
    zero: int
    four: bool

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """[T, N] of x [T, K]."""
        y: torch.Tensor = product(x, self.codes, self.scales, self.mins, self.bias, self.zero, self.four)
        return y


class Linear(Kept):
    """The op linear: a product per Part, side by side."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> list[_Part | GroupPart]:  # type: ignore[override]
        """Codes, scales and offsets of each Part, apart."""
        found: list[_Part | GroupPart] = []
        for key in (key for key in weights if not key.endswith(".bias")):
            tensor, bias = weights[key], weights.dense(f"{key}.bias") if f"{key}.bias" in weights else None
            found.append((group_part if tensor.dtype in AS_BLOCKS else _packed)(tensor, bias, weights.device))
        return found

    def bind(self, spec: Spec, packed: list[_Part | GroupPart], states: tuple[StatePages, ...]) -> Call:
        """The call with its weights."""

        def call(rows: Rows, x: torch.Tensor) -> torch.Tensor:
            made = [one.times(x) for one in packed]
            return made[0] if len(made) == 1 else torch.cat(made, -1)

        return call


def _packed(tensor: HostTensor, bias: torch.Tensor | None, device: torch.device) -> _Part:
    """A block is a scale, for q4_1 a least value, both float16, then the codes."""
    four, has_min = tensor.dtype != "q8_0", tensor.dtype == "q4_1"
    size = (4 if has_min else 2) + (_BLOCK // 2 if four else _BLOCK)
    blocks = np.ascontiguousarray(tensor.data).reshape(tensor.rows, -1, size)

    def numbers(first: int) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(blocks[:, :, first : first + 2]).view(np.float16)[:, :, 0].astype(np.float32)).to(device, copy=True)

    codes = np.ascontiguousarray(blocks[:, :, 4 if has_min else 2 :]).reshape(tensor.rows, -1)
    kept = torch.from_numpy(codes if four else codes.view(np.int8)).to(device, copy=True)
    return _Part(kept, numbers(0), numbers(2) if has_min else None, bias, 8 if tensor.dtype == "q4_0" else 0, four)

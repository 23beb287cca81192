"""kv_write: the rows of a step into the pages. A row without a place writes nothing."""

import torch
import triton.language as tl

from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx_triton.launch import Tiles, power_of_two
from llmx_triton.weightless import Kept

__all__ = ["KvWrite", "write_rows"]


@Tiles
def _write(x, pages, places, width, LARGEST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(places + row)
    if place >= 0:
        at = tl.arange(0, BLOCK)
        values = tl.load(x + row * width + at, mask=at < width, other=0.0)
        if LARGEST:
            values = tl.minimum(tl.maximum(values, -LARGEST), LARGEST)
            bits = values.to(tl.int32, bitcast=True)  # rounded here, to 3 bits of mantissa: conversions differ, Triton's interpreter loses a carry
            near = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
            values = tl.where(tl.abs(values) < 0.015625, values + 24576.0 - 24576.0, near)  # below 2^-6 there are whole 2^-9
        tl.store(pages + place * width + at, values.to(pages.dtype.element_ty), mask=at < width)


@torch.library.custom_op("llmx_triton::kv_write", mutates_args=("k_pages", "v_pages"))
def kv_write(k: torch.Tensor, v: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, places: torch.Tensor) -> None:
    """k [T, K, D] and v [T, K, V] to pages [blocks, block tokens, K, ...] at places [T]."""
    write_rows(k, k_pages, places)
    write_rows(v, v_pages, places)


@torch.library.custom_op("llmx_triton::write_rows", mutates_args=("pages",))
def write_rows(x: torch.Tensor, pages: torch.Tensor, places: torch.Tensor) -> None:
    """Rows x [T, ...] to pages [blocks, block tokens, ...] at places [T]."""
    x = x.contiguous()
    width = x[0].numel() if len(x) else 0
    largest = torch.finfo(pages.dtype).max if pages.dtype == torch.float8_e4m3fn else 0.0  # beyond it this type has no number
    _write.launch((len(x),), x, x, pages, places, width, LARGEST=largest, BLOCK=power_of_two(width))


class KvWrite(Kept):
    """The op kv_write."""

    def bind(self, spec: Spec, packed: None, states: tuple[StatePages, ...]) -> Call:
        """The call with its pages."""
        state = states[0]
        k_pages, v_pages = state.tensors

        def call(rows: Rows, k: torch.Tensor, v: torch.Tensor) -> tuple[()]:
            kv_write(k, v, k_pages, v_pages, rows.layout.places[state.group])
            return ()

        return call

"""norm (rms) and act_mul: one program per row, or per piece of a row.

Annotations are objects here and in the other files with tile programs: Triton reads them.
"""

from typing import Any

import torch
import triton.language as tl

from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx_triton.launch import Tiles, power_of_two
from llmx_triton.weightless import Kept

__all__ = ["ActMul", "Norm"]

_PIECE = 1024  # elements of a row that one program of act_mul computes


@Tiles
def _rms(x, w, y, width, eps, offset, HAS_W: tl.constexpr, FLOOR: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=0.0)
    mean = tl.sum(values * values, 0) / width
    size = tl.maximum(mean, eps) if FLOOR else mean + eps
    values = values / tl.sqrt(size)
    if HAS_W:
        values = values * (tl.load(w + at, mask=inside, other=0.0) + offset)
    tl.store(y + row * width + at, values, mask=inside)


@torch.library.custom_op("llmx_triton::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, w: torch.Tensor | None, eps: float, offset: float, floor: bool) -> torch.Tensor:
    """x [T, H] divided by its root mean square, times w + offset where there is a w."""
    x = x.contiguous()
    y, width = torch.empty_like(x), x.shape[-1]
    rows, has_w = x.numel() // width if width else 0, w is not None
    _rms.launch((rows,), x, x, w if has_w else x, y, width, eps, offset, HAS_W=has_w, FLOOR=floor, BLOCK=power_of_two(width))
    return y


@Tiles
def _act_mul(x, y, width, KIND: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(x + row * 2 * width + at, mask=inside, other=0.0)
    up = tl.load(x + row * 2 * width + width + at, mask=inside, other=0.0)
    if KIND == "silu":
        gate = gate * tl.sigmoid(gate)
    elif KIND == "gelu":
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    elif KIND == "gelu_tanh":  # tanh(z) = 2 sigmoid(2 z) - 1
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        gate = tl.maximum(gate, 0.0)
    tl.store(y + row * width + at, gate * up, mask=inside)


@torch.library.custom_op("llmx_triton::act_mul", mutates_args=())
def act_mul(x: torch.Tensor, kind: str) -> torch.Tensor:
    """act(first half of each row) times its second half."""
    x = x.contiguous()
    width = x.shape[-1] // 2
    y = x.new_empty((*x.shape[:-1], width))
    rows, piece = (x.numel() // (2 * width) if width else 0), min(_PIECE, power_of_two(width))
    _act_mul.launch((rows, -(-width // piece)), x, x, y, width, KIND=kind, BLOCK=piece)
    return y


class Norm:
    """The op norm."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> torch.Tensor | None:
        """The scale as float32."""
        return weights.dense("w.0") if "w.0" in weights else None

    def workspace(self, spec: Spec, limits: Any) -> int:
        """None."""
        return 0

    def bind(self, spec: Spec, packed: torch.Tensor | None, states: tuple[StatePages, ...]) -> Call:
        """The call with its constants."""
        assert not isinstance(spec, tuple)
        a = spec.attrs

        def call(rows: Rows, x: torch.Tensor) -> torch.Tensor:
            return rms_norm(x, packed, a.eps, a.offset, a.eps_floor)

        return call


class ActMul(Kept):
    """The op act_mul."""

    def bind(self, spec: Spec, packed: None, states: tuple[StatePages, ...]) -> Call:
        """The call with its constants."""
        assert not isinstance(spec, tuple)
        kind = spec.attrs.kind

        def call(rows: Rows, x: torch.Tensor) -> torch.Tensor:
            return act_mul(x, kind)

        return call

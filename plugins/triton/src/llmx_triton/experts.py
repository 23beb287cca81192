"""moe_experts: a grouped product. Chosen (row, expert) pairs are sorted by expert on the device and filled up to whole tiles, so that a program has one
expert's weights; the host looks at no value, and the grid depends on sizes alone."""


import numpy as np
import torch
import triton.language as tl

from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.record import record
from llmx_triton.launch import Tiles
from llmx_triton.rowwise import act_mul
from llmx_triton.weightless import Kept

__all__ = ["Experts", "grouped_product", "sorted_tiles"]

_ROWS = 16  # pairs of a program
_COLUMNS = 32
_DEPTH = 32


@Tiles
def _product(  # type: ignore[no-untyped-def]
    x, w, bias, y, slots, owners, columns, depth, experts, SHARE: tl.constexpr, HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    expert = tl.load(owners + tile).to(tl.int64)
    if expert < experts:
        pair = tl.load(slots + tile * BM + tl.arange(0, BM)).to(tl.int64)
        n, each = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
        real, in_n = pair >= 0, n < columns
        sums = tl.zeros([BM, BN], tl.float32)
        for step in range((depth + BK - 1) // BK):
            k = step * BK + each
            in_k = k < depth
            given = tl.load(x + (pair // SHARE)[:, None] * depth + k[None, :], mask=real[:, None] & in_k[None, :], other=0.0)
            own = tl.load(w + (expert * columns + n)[None, :] * depth + k[:, None], mask=in_k[:, None] & in_n[None, :], other=0.0).to(tl.float32)
            sums += tl.dot(given, own, input_precision="ieee")
        if HAS_BIAS:
            sums += tl.load(bias + expert * columns + n, mask=in_n, other=0.0)[None, :]
        tl.store(y + pair[:, None] * columns + n[None, :], sums, mask=real[:, None] & in_n[None, :])


@torch.library.custom_op("llmx_triton::grouped_product", mutates_args=())
def grouped_product(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, slots: torch.Tensor, owners: torch.Tensor, pairs: int, share: int
) -> torch.Tensor:
    """[pairs, N] of x [pairs / share, K] and w [E, N, K]: each pair with its expert. slots, owners: of `sorted_tiles`."""
    x = x.contiguous()
    experts, columns, depth = w.shape
    y = x.new_empty((pairs, columns))
    _product.launch(
        (len(owners), -(-columns // _COLUMNS)), x, x, w, x if bias is None else bias, y, slots, owners, columns, depth, experts,
        SHARE=share, HAS_BIAS=bias is not None, BM=_ROWS, BN=_COLUMNS, BK=_DEPTH,
    )  # fmt: skip
    return y


def sorted_tiles(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(slots i64 [tiles x 16]: the pair at each place, -1 for none; owners i64 [tiles]: the expert of a tile, `experts` for none) of ids [pairs]."""
    pairs = len(ids)
    tiles = -(-pairs // _ROWS) + min(experts, pairs)
    given, order = torch.sort(ids, stable=True)
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add(0, ids, torch.ones_like(ids))
    ends = ((counts + _ROWS - 1) // _ROWS).cumsum(0)  # in tiles
    before = ends * _ROWS - (counts + _ROWS - 1) // _ROWS * _ROWS - (counts.cumsum(0) - counts)  # place of an expert's pair, less its rank among all
    places = torch.arange(pairs, device=ids.device) + before[given]
    slots = torch.full((tiles * _ROWS,), -1, dtype=torch.int64, device=ids.device).scatter(0, places, order)
    owners = torch.searchsorted(ends, torch.arange(tiles, device=ids.device), right=True)
    return slots, owners


@record
class _Packed:
    """gate_up [E, 2 F, H] and down [E, H, F] as stored, biases float32 or None."""

    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None


class Experts(Kept):
    """The op moe_experts."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> _Packed:  # type: ignore[override]
        """The experts of each role one behind the other."""
        assert not isinstance(spec, tuple)
        count = spec.attrs.spec.experts

        def matrices(*roles: str) -> torch.Tensor:
            return torch.stack([torch.cat([_matrix(weights, f"{role}.{i}") for role in roles]) for i in range(count)])

        def biases(*roles: str) -> torch.Tensor | None:
            keys = [[f"{role}.{i}.bias" for role in roles] for i in range(count)]
            if not any(key in weights for per in keys for key in per):
                return None
            rows = {role: weights[f"{role}.0"].shape[0] for role in roles}
            zero = {f"{role}.{i}.bias": torch.zeros(rows[role], device=weights.device) for role in roles for i in range(count)}
            return torch.stack([torch.cat([weights.dense(key) if key in weights else zero[key] for key in per]) for per in keys])

        return _Packed(matrices("gate", "up"), matrices("down"), biases("gate", "up"), biases("down"))

    def bind(self, spec: Spec, packed: _Packed, states: tuple[StatePages, ...]) -> Call:
        """The call with its weights."""
        assert not isinstance(spec, tuple)
        s = spec.attrs.spec

        def call(rows: Rows, x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            pairs = ids.numel()
            slots, owners = sorted_tiles(ids.flatten().to(torch.int64), s.experts)
            inner = act_mul(grouped_product(x, packed.gate_up, packed.gate_up_bias, slots, owners, pairs, s.top_k), s.act)
            parts = grouped_product(inner, packed.down, packed.down_bias, slots, owners, pairs, 1).unflatten(0, (-1, s.top_k)) * w[..., None]
            total = parts[:, 0]
            for place in range(1, s.top_k):  # in the row's own order
                total = total + parts[:, place]
            return total

        return call


def _matrix(weights: Weights, key: str) -> torch.Tensor:
    """A dense weight in its own format on the device."""
    tensor = weights[key]
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[tensor.dtype]
    return torch.from_numpy(np.ascontiguousarray(tensor.data).copy()).view(kind).reshape(tensor.shape).to(weights.device)

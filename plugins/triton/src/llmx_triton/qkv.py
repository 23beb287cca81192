"""qkv_prep: split, norm of q and k per head, rope; one program per row and head, nothing goes through memory in between."""

from typing import Any

import torch
import triton.language as tl

from llmx.executor.torch.kernel import Call, Spec
from llmx.executor.torch.pages import StatePages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.weights import Weights
from llmx.program.positions import rope_table
from llmx_triton.launch import Tiles, power_of_two

__all__ = ["QkvPrep"]


@Tiles
def _prepare(  # type: ignore[no-untyped-def]
    x, q, k, v, positions, table, q_w, k_w, width, q_heads, kv_heads, eps, offset,
    D: tl.constexpr, V: tl.constexpr, TURNED: tl.constexpr, NEOX: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    if head >= q_heads + kv_heads:  # v is copied
        one = head - q_heads - kv_heads
        values = tl.load(x + row * width + (q_heads + kv_heads) * D + one * V + at, mask=at < V, other=0.0)
        tl.store(v + (row * kv_heads + one) * V + at, values, mask=at < V)
    else:
        source = x + row * width + head * D
        values = tl.load(source + at, mask=at < D, other=0.0)
        half = TURNED // 2
        if NEOX:
            other = tl.where(at < half, at + half, at - half)
            first, which = at < half, at % half if TURNED else at
        else:
            other = tl.where(at % 2 == 0, at + 1, at - 1)
            first, which = at % 2 == 0, at // 2
        turned = at < TURNED
        partner = tl.load(source + other, mask=turned, other=0.0)
        if NORM:
            w = q_w if head < q_heads else k_w
            size = tl.sqrt(tl.sum(values * values, 0) / D + eps)
            values = values / size * (tl.load(w + at, mask=at < D, other=0.0) + offset)
            partner = partner / size * (tl.load(w + other, mask=turned, other=0.0) + offset)
        if TURNED:
            angle = table + tl.load(positions + row) * TURNED + which
            cos, sin = tl.load(angle, mask=turned, other=1.0), tl.load(angle + half, mask=turned, other=0.0)
            values = tl.where(turned, values * cos + tl.where(first, -partner, partner) * sin, values)
        if head < q_heads:
            tl.store(q + (row * q_heads + head) * D + at, values, mask=at < D)
        else:
            tl.store(k + (row * kv_heads + head - q_heads) * D + at, values, mask=at < D)


@torch.library.custom_op("llmx_triton::qkv_prep", mutates_args=())
def qkv_prep(
    x: torch.Tensor, positions: torch.Tensor | None, table: torch.Tensor | None, q_w: torch.Tensor | None, k_w: torch.Tensor | None,
    sizes: list[int], eps: float, offset: float, neox: bool,
) -> list[torch.Tensor]:  # fmt: skip
    """q [T, H, D], k [T, K, D] and v [T, K, V] of x [T, H D + K D + K V]. sizes: H, K, D, V and how many elements of a head are turned."""
    heads, kv_heads, d, wide, turned = sizes
    x, rows = x.contiguous(), len(x)
    q, k, v = x.new_empty((rows, heads, d)), x.new_empty((rows, kv_heads, d)), x.new_empty((rows, kv_heads, wide))
    _prepare.launch(
        (rows, heads + 2 * kv_heads), x, x, q, k, v, x if positions is None else positions.contiguous(), x if table is None else table,
        x if q_w is None else q_w, x if k_w is None else k_w, x.shape[1], heads, kv_heads, eps, offset,
        D=d, V=wide, TURNED=turned, NEOX=neox, NORM=q_w is not None, BLOCK=power_of_two(max(d, wide)),
    )  # fmt: skip
    return [q, k, v]


class QkvPrep:
    """The op qkv_prep."""

    def pack(self, weights: Weights, spec: Spec, uses: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """The scales of q and k as float32, and the table of cosines and sines."""
        assert not isinstance(spec, tuple)
        rope, length = spec.attrs.spec.rope, weights.max_model_len
        packed = {key: weights.dense(key) for key in weights}
        if rope is not None:
            packed["rope"] = weights.constant(("rope", rope, length), lambda: rope_table(rope, length))
        return packed

    def workspace(self, spec: Spec, limits: Any) -> int:
        """None."""
        return 0

    def bind(self, spec: Spec, packed: dict[str, torch.Tensor], states: tuple[StatePages, ...]) -> Call:
        """The call with its constants."""
        assert not isinstance(spec, tuple)
        s = spec.attrs.spec
        turned, neox = (s.rope.rotary_dim, s.rope.style == "neox") if s.rope is not None else (0, True)
        sizes = [s.q_heads, s.kv_heads, s.head_dim, s.v_head_dim, turned]
        table, q_w, k_w = packed.get("rope"), packed.get("q_norm.0"), packed.get("k_norm.0")

        def call(rows: Rows, x: torch.Tensor, positions: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
            return tuple(qkv_prep(x, positions, table, q_w, k_w, sizes, s.norm_eps, s.norm_offset, neox))

        return call

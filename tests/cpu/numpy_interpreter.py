"""The meaning of a Program in numpy, one sequence at a time, float64 inside: the oracle of the native executor.

It follows the definitions of llmx.program (attrs, kinds) and shares no code with the platform. `rounding` repeats what the
executor rounds: "none" for dtype float32; "int16" and "int8" (LLMX_CPU_ACT) for inputs of quantised weights, bf16 inputs of bf16
weights, and bf16 pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from llmx.executor import WeightSource
from llmx.program.attrs import AttnSpec, NormAttrs, QkvSpec, RopeSpec
from llmx.program.ops import Op, Part, Program, WeightRef
from llmx.weights.quant import dequantize
from llmx_cpu.machine import FINE_POSITIONS

__all__ = ["Interpreter", "round_bf16", "round_int16", "round_int8"]

Rounding = Callable[[np.ndarray], np.ndarray]


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest bf16 values, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def round_int8(x: np.ndarray) -> np.ndarray:
    """Values of int8 blocks of 32: d = amax / 127 in float32."""
    return _round_blocks(x, np.float32(127))


def round_int16(x: np.ndarray) -> np.ndarray:
    """Values of int16 blocks of 32: d = amax / (127 * 256) in float32."""
    return _round_blocks(x, np.float32(127 * 256))


def round_outliers(x: np.ndarray, among: int = 0) -> np.ndarray:
    """int16 in blocks whose largest value, squared, is above twice the mean over the row's blocks (or over `among`, aligned); int8 in the others."""
    squares = np.abs(np.ascontiguousarray(x, np.float32)).reshape(*x.shape[:-1], -1, 32).max(-1) ** 2
    blocks = squares.shape[-1]
    parts = [squares[..., at : at + (among or blocks)] for at in range(0, blocks, among or blocks)]
    stands_out = np.concatenate([part > 2 * part.mean(-1, keepdims=True) for part in parts], axis=-1)
    return np.where(np.repeat(stands_out, 32, axis=-1), round_int16(x), round_int8(x))


def _round_blocks(x: np.ndarray, largest: np.float32) -> np.ndarray:
    blocks = np.ascontiguousarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    amax = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.divide(largest, amax, out=np.zeros_like(amax), where=amax > 0)
    return (np.rint(blocks * inverse).astype(np.float64) * (amax / largest)).reshape(x.shape)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


ACTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


class Interpreter:
    """Runs one Program over whole sequences."""

    def __init__(self, program: Program, source: WeightSource, rounding: str = "none") -> None:
        self.program, self.source, self.rounded = program, source, rounding != "none"
        self._rounding = rounding
        self.values: dict[int, Any] = {}
        self.pages: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._cache: dict[Any, np.ndarray] = {}
        self._of_attention = {out.id for op in program.ops if op.kind == "attention" for out in op.outs}

    def logits(self, tokens: list[int]) -> np.ndarray:
        """f64 [len(tokens), V]: the logits after every token."""
        rows = np.arange(len(tokens))
        given = {"ids": np.array(tokens), "positions": rows, "head": rows}
        self.values = {value.id: given[name] for name, value in self.program.inputs.items()}
        for op in self.program.ops:
            results = getattr(self, f"_{op.kind}")(op, *[None if v is None else self.values[v.id] for v in op.ins])
            for value, result in zip(op.outs, results if isinstance(results, tuple) else (results,), strict=True):
                self.values[value.id] = result
        return self.values[self.program.outputs()["logits"].id]

    def weight(self, ref: WeightRef) -> np.ndarray:
        """Dequantised values of a tensor, float64."""
        key = (ref.name, ref.transforms)
        if key not in self._cache:
            self._cache[key] = dequantize(self.source.get(ref)).astype(np.float64).reshape(ref.shape)
        return self._cache[key]

    def _product(self, x: np.ndarray, part: Part, early: Rounding) -> np.ndarray:
        stored = str(part.weight.quant)
        if self.rounded and stored.startswith("q"):
            x = self._round_int(x, early)
        elif self.rounded and stored == "bf16":
            x = round_bf16(x)
        y = x @ self.weight(part.weight).T
        return y if part.bias is None else y + self.weight(part.bias)

    def _round_int(self, x: np.ndarray, early: Rounding) -> np.ndarray:
        if self._rounding == "auto":
            return np.concatenate([early(x[:FINE_POSITIONS]), round_int8(x[FINE_POSITIONS:])])
        return round_int8(x) if self._rounding == "int8" else round_int16(x)

    # -- ops -----------------------------------------------------------------------------------------------------------

    def _embed(self, op: Op, ids: np.ndarray) -> np.ndarray:
        return self.weight(op.weights["w"][0].weight)[ids] * np.float32(op.attrs.scale)

    def _pos_embed(self, op: Op, positions: np.ndarray) -> np.ndarray:
        return self.weight(op.weights["w"][0].weight)[positions + op.attrs.offset]

    def _linear(self, op: Op, x: np.ndarray) -> np.ndarray:
        parts = op.weights["w"]
        if getattr(op.outs[0].shape[0], "name", "") != "T":  # logits
            early: Rounding = round_int16
        elif op.ins[0] is not None and op.ins[0].id in self._of_attention:
            early = round_int8
        else:
            early = partial(round_outliers, among=8 if len(parts) == 1 else 0)
        return np.concatenate([self._product(x, part, early) for part in parts], axis=-1)

    def _norm(self, op: Op, x: np.ndarray, gate: np.ndarray | None = None) -> np.ndarray:
        a: NormAttrs = op.attrs
        if gate is not None and not a.gate_after:
            x = x * ACTS["silu"](gate)
        part = op.weights["w"][0] if "w" in op.weights else None
        y = self._plain_norm(x, a, part)
        return y * ACTS["silu"](gate) if gate is not None and a.gate_after else y

    def _plain_norm(self, x: np.ndarray, a: NormAttrs, part: Part | None) -> np.ndarray:
        groups = x.reshape(*x.shape[:-1], a.groups, -1)
        if a.kind == "layer":
            groups = groups - groups.mean(-1, keepdims=True)
        size = (groups**2).sum(-1, keepdims=True) if a.kind == "l2" else (groups**2).mean(-1, keepdims=True)
        size = np.maximum(size, a.eps) if a.eps_floor else size + a.eps
        y = (groups / np.sqrt(size)).reshape(x.shape)
        if part is not None:
            y = y * (self.weight(part.weight) + a.offset)
            y = y if part.bias is None else y + self.weight(part.bias)
        return y

    def _act(self, op: Op, x: np.ndarray) -> np.ndarray:
        return ACTS[op.attrs.kind](x)

    def _act_mul(self, op: Op, x: np.ndarray) -> np.ndarray:
        gate, up = np.split(x, 2, axis=-1)
        return ACTS[op.attrs.kind](gate) * up

    def _add(self, op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def _mul(self, op: Op, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        return x * (self.weight(op.weights["w"][0].weight) if y is None else y)

    def _scale(self, op: Op, x: np.ndarray) -> np.ndarray:
        return x * op.attrs.value

    def _softcap(self, op: Op, x: np.ndarray) -> np.ndarray:
        return op.attrs.value * np.tanh(x / op.attrs.value)

    def _clip(self, op: Op, x: np.ndarray) -> np.ndarray:
        return np.clip(x, -op.attrs.value, op.attrs.value)

    def _softmax(self, op: Op, x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def _split(self, op: Op, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.split(x, np.cumsum(op.attrs.sizes)[:-1], axis=-1))

    def _concat(self, op: Op, *xs: np.ndarray) -> np.ndarray:
        return np.concatenate(xs, axis=-1)

    def _view(self, op: Op, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, *op.outs[0].shape[1:])

    def _rows(self, op: Op, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        return x[index]

    def _output(self, op: Op, x: np.ndarray) -> tuple[()]:
        return ()

    # -- attention -----------------------------------------------------------------------------------------------------

    def _rope(self, op: Op, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return self._rotate(x, op.attrs.spec, positions)

    def _rotate(self, x: np.ndarray, spec: RopeSpec, positions: np.ndarray) -> np.ndarray:
        assert spec.scaling == "none", "the scalings have their own test against transformers"
        half = spec.rotary_dim // 2
        angles = positions[:, None] * spec.theta ** (-np.arange(half) * 2.0 / spec.rotary_dim)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        y = x.copy()
        one, two = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if spec.style == "gptj" else (slice(0, half), slice(half, 2 * half))
        y[..., one] = x[..., one] * cos - x[..., two] * sin
        y[..., two] = x[..., two] * cos + x[..., one] * sin
        return y

    def _position_scale(self, op: Op, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        factor = 1 + op.attrs.scale * np.log(1 + np.floor((positions + 1) / op.attrs.floor))
        return x * factor.reshape(-1, *[1] * (x.ndim - 1))

    def _qkv_prep(self, op: Op, x: np.ndarray, positions: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        s: QkvSpec = op.attrs.spec
        if s.clip is not None:
            x = np.clip(x, -s.clip, s.clip)
        outs, at, gate = [], 0, None
        widths = [("q", s.q_heads, s.head_dim * (2 if s.gate else 1))] * s.has_q + [("k", s.kv_heads, s.head_dim), ("v", s.kv_heads, s.v_head_dim)] * s.has_kv
        for name, heads, dim in widths:
            piece = x[:, at : at + heads * dim].reshape(-1, heads, dim)
            at += heads * dim
            if name == "q" and s.gate:
                piece, gate = piece[..., : s.head_dim], piece[..., s.head_dim :].reshape(len(x), -1)
            outs.append(self._prepare(op, piece, name, s, positions))
        return tuple(outs) if gate is None else (*outs, gate)

    def _prepare(self, op: Op, x: np.ndarray, name: str, s: QkvSpec, positions: np.ndarray | None) -> np.ndarray:
        if name == "v":
            return self._plain_norm(x, NormAttrs("rms", s.norm_eps), None) if s.v_norm else x
        part = op.weights[f"{name}_norm"][0] if f"{name}_norm" in op.weights else None

        def norm(y: np.ndarray) -> np.ndarray:
            if s.qk_norm == "none":
                return y
            flat = y.reshape(len(y), -1) if s.qk_norm == "full" else y
            return self._plain_norm(flat, NormAttrs(s.qk_norm_kind, s.norm_eps, s.norm_offset), part).reshape(y.shape)

        if s.qk_norm_before_rope:
            x = norm(x)
        if s.rope is not None and positions is not None:
            x = self._rotate(x, s.rope, positions)
        if not s.qk_norm_before_rope:
            x = norm(x)
        if name == "q" and s.q_position_scale is not None and positions is not None:
            scale, floor = s.q_position_scale
            x = x * (1 + scale * np.log(1 + np.floor((positions + 1) / floor)))[:, None, None]
        return x

    def _kv_write(self, op: Op, k: np.ndarray, v: np.ndarray) -> tuple[()]:
        self.pages[op.states[0]] = (round_bf16(k), round_bf16(v)) if self.rounded else (k, v)
        return ()

    def _attention(self, op: Op, q: np.ndarray, *_: np.ndarray) -> np.ndarray:
        s: AttnSpec = op.attrs.spec
        k, v = self.pages[op.states[0]]
        group = s.q_heads // s.kv_heads
        scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1)) * s.scale
        if s.soft_cap is not None:
            scores = s.soft_cap * np.tanh(scores / s.soft_cap)
        back = np.arange(len(q))[:, None] - np.arange(len(k))[None, :]
        if s.alibi:
            slopes = 2.0 ** (-8.0 * (np.arange(s.q_heads) + 1) / s.q_heads)  # powers of two only
            scores = scores - slopes[:, None, None] * back
        seen = (back >= 0) & (back < (s.window or len(q)))
        scores = np.where(seen, scores, -np.inf)
        if s.sinks:
            sink = np.broadcast_to(self.weight(op.weights["sinks"][0].weight)[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([scores, sink], axis=-1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = (weights / weights.sum(-1, keepdims=True))[..., : len(k)]
        return np.einsum("hqk,khd->qhd", weights, np.repeat(v, group, axis=1)).reshape(len(q), -1)

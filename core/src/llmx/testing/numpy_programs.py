"""Interpreter: a plain numpy reading of Programs, one request at a time and without pages: what each primitive means, in float64.

Shape letters: T rows, S keys, H query heads, K kv heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

from llmx.program.attrs import AttnSpec, MlaSpec, MoeSpec, NormAttrs, RecurrentSpec, RopeSpec
from llmx.program.ops import Op, Part, Program, Sym, SymDiv, WeightRef

__all__ = ["ACTS", "Interpreter", "causal_conv", "gated_delta", "latent", "mamba2", "norm", "rms", "rotate", "route", "sigmoid", "silu", "softmax", "softplus"]

Array = np.ndarray


def rms(x: Array, eps: float, floor: bool = False) -> Array:
    """x over its root mean square."""
    mean = (x * x).mean(-1, keepdims=True)
    return x / np.sqrt(np.maximum(mean, eps) if floor else mean + eps)


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    """x times its sigmoid."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """log(1 + e^x), without overflow."""
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


ACTS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
}


def rotate(x: Array, positions: Array, spec: RopeSpec) -> Array:
    """x [T, heads, D]; pairs (i, i + n/2) or (2i, 2i + 1) of the first n = rotary_dim elements. Without scaling."""
    n = spec.rotary_dim
    if spec.mrope_sections:
        row = np.repeat(np.arange(len(spec.mrope_sections)), spec.mrope_sections)
        ladders = [spec.theta ** (-np.arange(s) / s) for s in spec.mrope_sections] if spec.axial else [spec.theta ** (-np.arange(0, n, 2) / n)]
        angle = positions[row].T * np.concatenate(ladders)
    else:
        angle = positions[:, None] * spec.theta ** (-np.arange(0, n, 2) / n)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = (slice(0, n // 2), slice(n // 2, n)) if spec.style == "neox" else (slice(0, n, 2), slice(1, n, 2))
    a, b, out = x[..., first], x[..., second], x.copy()
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def norm(x: Array, a: NormAttrs, w: Array | None, bias: Array | None) -> Array:
    """The op `norm`, gate left out."""
    cut = x.reshape(*x.shape[:-1], a.groups, -1)
    if a.kind == "layer":
        centred = cut - cut.mean(-1, keepdims=True)
        y = rms(centred, a.eps)
    elif a.kind == "l2":
        y = cut / np.sqrt((cut * cut).sum(-1, keepdims=True) + a.eps)
    else:
        y = rms(cut, a.eps, a.eps_floor)
    y = y.reshape(x.shape) * (1.0 if w is None else w + a.offset)
    return y if bias is None else y + bias


def attend(s: AttnSpec, q: Array, k: Array, v: Array, segments: Array | None) -> Array:
    """o [T, H * V]; the last row of q stands beside the last key."""
    rows, keys, share = q.shape[0], k.shape[0], s.q_heads // s.kv_heads
    scores = np.einsum("thd,shd->hts", q, np.repeat(k, share, 1)) * s.scale
    if s.soft_cap is not None:
        scores = s.soft_cap * np.tanh(scores / s.soft_cap)
    distance = np.arange(keys - rows, keys)[:, None] - np.arange(keys)[None]
    seen = distance >= 0 if s.mask == "causal" else np.ones((rows, keys), bool)
    seen &= distance < (s.window or keys + 1)
    if segments is not None:
        seen &= segments[:, None] == segments[None]
    weights = softmax(np.where(seen, scores, -np.inf))
    return np.einsum("hts,shd->thd", weights, np.repeat(v, share, 1)).reshape(rows, -1)


def latent(s: MlaSpec, q: Array, c_kv: Array, k_pe: Array, positions: Array, kv_b: Array) -> Array:
    """The op `mla` over whole sequences, unfolded to ordinary attention."""
    rows = q.shape[0]
    q = q.reshape(rows, s.q_heads, -1)
    q = np.concatenate([q[..., : s.qk_nope], rotate(q[..., s.qk_nope :], positions, s.rope)], -1)
    kv = (c_kv @ kv_b.T).reshape(rows, s.q_heads, -1)
    rope = np.repeat(rotate(k_pe[:, None], positions, s.rope), s.q_heads, 1)
    k = np.concatenate([kv[..., : s.qk_nope], rope], -1)
    spec = AttnSpec(s.q_heads, s.q_heads, s.qk_nope + s.qk_rope, s.v_head_dim, s.scale)
    return attend(spec, q, k, kv[..., s.qk_nope :], None)


def route(s: MoeSpec, x: Array, router: Array, bias: Array | float, own: Array | float = 0.0) -> tuple[Array, Array]:
    """The op `moe_route`: weights and ids [T, top_k], ties to the lowest id. own: the router's bias; bias: added before the choice alone."""
    logits = x @ router.T + own
    scores = softmax(logits) if s.score == "softmax" else sigmoid(logits)
    choice = scores + bias
    if s.groups > 1:
        grouped = choice.reshape(len(x), s.groups, -1)
        best = np.sort(grouped, -1)[..., -2:].sum(-1)
        kept = best >= np.sort(best, -1)[:, -s.top_groups][:, None]
        choice = np.where(kept[..., None], grouped, -np.inf).reshape(choice.shape)
    ids = np.argsort(-choice, -1, kind="stable")[:, : s.top_k]
    w = np.take_along_axis(scores, ids, -1)
    return (w / w.sum(-1, keepdims=True) if s.normalize else w) * s.scale, ids


def causal_conv(x: Array, w: Array, bias: Array | float) -> Array:
    """Depthwise convolution over the rows before and at each row."""
    size = w.shape[-1]
    padded = np.concatenate([np.zeros((size - 1, x.shape[1])), x])
    return sum(padded[i : i + len(x)] * w[:, 0, i] for i in range(size)) + bias


def mamba2(s: RecurrentSpec, xbc: Array, dt: Array, w: dict[str, Array]) -> Array:
    """The mixer `mamba2`, token by token."""
    d = dict(s.dims)
    heads, p, n, groups = d["heads"], d["head_dim"], d["state"], d["groups"]
    xbc = silu(causal_conv(xbc, w["conv"], w.get("conv.bias", 0.0)))
    x, b, c = np.split(xbc, [heads * p, heads * p + groups * n], -1)
    x, b, c = x.reshape(-1, heads, p), *(np.repeat(m.reshape(-1, groups, n), heads // groups, 1) for m in (b, c))
    low, high = s.limits or (0.0, np.inf)
    dt = np.clip(softplus(dt + w["dt_bias"]), low, high)
    state, out = np.zeros((heads, p, n)), []
    for t in range(len(x)):
        state = state * np.exp(-dt[t] * np.exp(w["a_log"]))[:, None, None] + (dt[t][:, None] * x[t])[..., None] * b[t][:, None]
        out.append((state * c[t][:, None]).sum(-1) + w["d"][:, None] * x[t])
    return np.stack(out).reshape(len(x), -1)


def gated_delta(s: RecurrentSpec, qkv: Array, a: Array, b: Array, w: dict[str, Array]) -> Array:
    """The mixer `gated_delta`, token by token."""
    d = dict(s.dims)
    heads, k_dim, share = d["v_heads"], d["k_dim"], d["v_heads"] // d["k_heads"]
    keys = d["k_heads"] * k_dim
    qkv = silu(causal_conv(qkv, w["conv"], w.get("conv.bias", 0.0)))
    q, k, v = np.split(qkv, [keys, 2 * keys], -1)
    q, k = (np.repeat(m.reshape(-1, d["k_heads"], k_dim), share, 1) for m in (q, k))
    q, k = (m / np.sqrt((m * m).sum(-1, keepdims=True) + s.eps) for m in (q, k))
    v, decay, beta = v.reshape(-1, heads, d["v_dim"]), np.exp(-np.exp(w["a_log"]) * softplus(a + w["dt_bias"])), sigmoid(b)
    state, out = np.zeros((heads, k_dim, d["v_dim"])), []
    for t in range(len(q)):
        state = state * decay[t][:, None, None]
        delta = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + k[t][..., None] * delta[:, None]
        out.append(np.einsum("hkv,hk->hv", state, q[t] * k_dim**-0.5))
    return np.stack(out).reshape(len(q), -1)


class Interpreter:
    """Runs decomposed Programs over named tensors. Pages live as long as the object."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = tensors
        self.pages: dict[str, tuple[Array, Array]] = {}

    def run(self, program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The Program's named results."""
        values = self.values(program, inputs)
        return {name: values[v.id] for name, v in program.outputs().items()}

    def values(self, program: Program, inputs: Mapping[str, Array]) -> dict[int, Array]:
        """Every value by id; shapes are checked against what the Program says."""
        values = {v.id: np.asarray(inputs[name]) for name, v in program.inputs.items()}
        sizes = {d.name: values[v.id].shape[i] for v in program.inputs.values() for i, d in enumerate(v.shape) if isinstance(d, Sym)}
        for v in program.inputs.values():
            sizes.update({d.sym.name: values[v.id].shape[i] * d.by for i, d in enumerate(v.shape) if isinstance(d, SymDiv) and d.sym.name not in sizes})
        self.sizes = {**sizes, "N": 1}
        for op in program.ops:
            results = getattr(self, f"_op_{op.kind}")(op, *(None if v is None else values[v.id] for v in op.ins))
            for v, result in zip(op.outs, results if isinstance(results, list | tuple) else [results], strict=bool(op.outs)):
                assert result.shape == tuple(map(self.size, v.shape)), f"{op.kind} in {op.region}: {result.shape}, not {v.shape}"
                values[v.id] = result
        return values

    def size(self, d: Any) -> int:
        """A dimension of the running step."""
        return d if isinstance(d, int) else self.sizes[d.name] if isinstance(d, Sym) else self.sizes[d.sym.name] // d.by

    def tensor(self, ref: WeightRef) -> Array:
        """A weight with its transforms."""
        t = self.tensors[ref.name]
        for change in ref.transforms:
            if change.name == "row":
                t = t[change.args[0]]
            elif change.name == "slice_rows":
                t = t[slice(*change.args)]
            elif change.name == "flatten":
                t = t.reshape(t.shape[0], -1)
            else:
                raise NotImplementedError(change.name)
        assert t.shape == ref.shape
        return t

    def part(self, op: Op, role: str) -> tuple[Array | None, Array | None]:
        """(weight, bias) of the first part of a role; None where there is none."""
        parts: tuple[Part, ...] = op.weights.get(role, ())
        if not parts:
            return None, None
        return self.tensor(parts[0].weight), None if parts[0].bias is None else self.tensor(parts[0].bias)

    def _weight(self, op: Op, role: str) -> Array:
        return self.tensor(op.weights[role][0].weight)

    def _op_embed(self, op: Op, ids: Array) -> Array:
        table, outside = self.part(op, "w")[0], op.attrs.outside
        assert table is not None
        return table[ids if outside is None else np.where(ids < len(table), ids, outside)] * op.attrs.scale

    def _op_pos_embed(self, op: Op, positions: Array) -> Array:
        return self._weight(op, "w")[positions + op.attrs.offset]

    def _op_take(self, op: Op, x: Array, index: Array) -> Array:
        return x[index]

    _op_rows = _op_take

    def _op_merge_embeds(self, op: Op, x: Array, cache: Array, index: Array) -> Array:
        return np.where((index >= 0)[:, None], cache[np.maximum(index, 0)], x)

    def _op_norm(self, op: Op, x: Array) -> Array:
        return norm(x, op.attrs, *self.part(op, "w"))

    def _op_linear(self, op: Op, x: Array) -> Array:
        outs = [x @ self.tensor(p.weight).T + (0.0 if p.bias is None else self.tensor(p.bias)) for p in op.weights["w"]]
        return np.concatenate(outs, -1)

    def _op_act(self, op: Op, x: Array) -> Array:
        if op.attrs.sparsity:
            cut = NormalDist().inv_cdf(op.attrs.sparsity)
            x = np.maximum(x - x.mean(-1, keepdims=True) - x.std(-1, keepdims=True) * cut, 0)
        return ACTS[op.attrs.kind](x)

    def _op_add(self, op: Op, x: Array, y: Array) -> Array:
        return x + y

    def _op_mul(self, op: Op, x: Array, y: Array | None = None) -> Array:
        return x * (self.part(op, "w")[0] if y is None else y)

    def _op_mix(self, op: Op, c: Array, x: Array) -> Array:
        return c @ x

    def _op_reduce(self, op: Op, x: Array) -> Array:
        kinds: dict[str, Callable[..., Array]] = {"mean": np.mean, "sum": np.sum}
        kinds["rms"] = lambda y, axis, keepdims: np.sqrt((y * y).mean(axis, keepdims=keepdims))
        return kinds[op.attrs.kind](x, axis=op.attrs.axis, keepdims=True)

    def _op_scale(self, op: Op, x: Array) -> Array:
        return x * op.attrs.value

    def _op_softcap(self, op: Op, x: Array) -> Array:
        return op.attrs.value * np.tanh(x / op.attrs.value)

    def _op_clip(self, op: Op, x: Array) -> Array:
        return np.clip(x, -op.attrs.value, op.attrs.value)

    def _op_softmax(self, op: Op, x: Array) -> Array:
        return softmax(x)

    def _op_position_scale(self, op: Op, x: Array, positions: Array) -> Array:
        gain = 1 + op.attrs.scale * np.log(1 + np.floor((positions + 1) / op.attrs.floor))
        return x * gain.reshape(-1, *[1] * (x.ndim - 1))

    def _op_split(self, op: Op, x: Array) -> list[Array]:
        return np.split(x, np.cumsum(op.attrs.sizes)[:-1], axis=-1)

    def _op_concat(self, op: Op, *xs: Array) -> Array:
        return np.concatenate(xs, -1)

    def _op_view(self, op: Op, x: Array) -> Array:
        return x.reshape([self.size(d) for d in op.attrs.shape])

    def _op_conv1d(self, op: Op, x: Array) -> Array:
        w, bias = self._weight(op, "w"), self.part(op, "w")[1]
        assert bias is not None
        half = op.attrs.kernel // 2
        padded = np.pad(x, ((half, half), (0, 0)))
        starts = range(0, len(x), op.attrs.stride)
        return np.stack([np.einsum("kc,ock->o", padded[i : i + op.attrs.kernel], w) for i in starts]) + bias

    def _op_pool(self, op: Op, x: Array) -> Array:
        return {"cls": x[:1], "last": x[-1:], "mean": x.mean(0, keepdims=True), "all": x}[op.attrs.kind]

    def _op_output(self, op: Op, x: Array) -> list[Array]:
        return []

    def _op_rope(self, op: Op, x: Array, positions: Array) -> Array:
        return rotate(x, positions, op.attrs.spec)

    def _op_kv_write(self, op: Op, k: Array, v: Array) -> list[Array]:
        self.pages[op.states[0]] = (k, v)
        return []

    def _op_attention(self, op: Op, q: Array, k: Array | None = None, v: Array | None = None, segments: Array | None = None) -> Array:
        keys, values = self.pages[op.states[0]] if op.states else (k, v)
        assert keys is not None and values is not None
        return attend(op.attrs.spec, q, keys, values, segments)

    def _op_mla(self, op: Op, q: Array, c_kv: Array, k_pe: Array, positions: Array) -> Array:
        return latent(op.attrs.spec, q, c_kv, k_pe, positions, self._weight(op, "kv_b"))

    def _op_moe_route(self, op: Op, x: Array) -> tuple[Array, Array]:
        (router, own), bias = self.part(op, "router"), self.part(op, "bias")[0]
        assert router is not None
        return route(op.attrs.spec, x, router, 0.0 if bias is None else bias, 0.0 if own is None else own)

    def _op_moe_experts(self, op: Op, x: Array, w: Array, ids: Array) -> Array:
        out, act = np.zeros_like(x), ACTS[op.attrs.spec.act]
        for t, k in np.ndindex(*ids.shape):
            gate, up, down = (self.tensor(op.weights[role][ids[t, k]].weight) for role in ("gate", "up", "down"))
            out[t] += w[t, k] * (down @ (act(gate @ x[t]) * (up @ x[t])))
        return out

    def _op_recurrent(self, op: Op, *ins: Array) -> Array:
        weights = {role: self.tensor(parts[0].weight) for role, parts in op.weights.items()}
        bias = self.part(op, "conv")[1]
        if bias is not None:
            weights["conv.bias"] = bias
        mixers: dict[str, Callable[..., Array]] = {"mamba2": mamba2, "gated_delta": gated_delta}
        return mixers[op.attrs.spec.kind](op.attrs.spec, *ins, weights)

"""Norms, activations, softmax and rope against numpy, at every level, over widths that are no multiple of sixteen."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cpu.numpy_interpreter import ACTS as REFERENCE

from llmx_cpu.lower.basic import ACTS, NORMS
from llmx_cpu.native import ISA_NAMES, best_isa, library, pointer

LEVELS = range(ISA_NAMES.index(best_isa()) + 1)


def rows(n: int, width: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n, width)) * scale).astype(np.float32)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("width", [1, 15, 16, 100])
def test_activations(isa: int, kind: str, width: int) -> None:
    x = rows(5, width)
    x.flat[0], x.flat[-1] = -80.0, 80.0
    y = np.empty_like(x)
    library().llmx_test_act(isa, ACTS.index(kind), 0, x.ctypes.data, y.ctypes.data, 5, width)
    with np.errstate(over="ignore"):
        want = REFERENCE[kind](x.astype(np.float64))
    assert np.abs(y - want).max() < 2e-6 * max(1.0, float(np.abs(want).max())) or kind == "relu2"
    assert np.allclose(y, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("width", [3, 32, 77])
def test_gated_activation_equals_its_parts(isa: int, width: int) -> None:
    """act_mul = act(gate) * up, bit for bit."""
    x = rows(7, 2 * width)
    gate, acted, y = np.ascontiguousarray(x[:, :width]), np.empty((7, width), np.float32), np.empty((7, width), np.float32)
    library().llmx_test_act(isa, 0, 0, gate.ctypes.data, acted.ctypes.data, 7, width)
    library().llmx_test_act(isa, 0, 1, x.ctypes.data, y.ctypes.data, 7, width)
    assert np.array_equal(y, acted * x[:, width:])


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize(("width", "groups"), [(1, 1), (17, 1), (64, 1), (576, 1), (90, 3)])
@pytest.mark.parametrize("gated", ["no", "before", "after"])
def test_norms(isa: int, kind: str, width: int, groups: int, gated: str) -> None:
    x, z, w, bias = rows(4, width), rows(4, width, 1), rows(1, width, 2)[0], rows(1, width, 3)[0]
    y = np.empty_like(x)
    gate = z if gated != "no" else None
    with_bias = bias if kind == "layer" else None
    library().llmx_test_norm(
        isa, NORMS.index(kind), 1e-5, 0, w.ctypes.data, pointer(with_bias), x.ctypes.data, pointer(gate), int(gated == "after"), y.ctypes.data, 4, width, groups
    )
    silu = REFERENCE["silu"](z.astype(np.float64))
    v = (x * silu if gated == "before" else x.astype(np.float64)).reshape(4, groups, -1)
    v = v - v.mean(-1, keepdims=True) if kind == "layer" else v
    size = (v**2).sum(-1, keepdims=True) if kind == "l2" else (v**2).mean(-1, keepdims=True)
    want = (v / np.sqrt(size + 1e-5)).reshape(4, width) * w + (bias if kind == "layer" else 0)
    want = want * silu if gated == "after" else want
    assert np.allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize(("kind", "name"), [(0, "scale"), (1, "softcap"), (2, "clip")])
def test_scalars(isa: int, kind: int, name: str) -> None:
    x = rows(1, 53, scale=10.0)
    y = np.empty_like(x)
    library().llmx_test_unary(isa, kind, 5.0, x.ctypes.data, y.ctypes.data, x.size)
    wide = x.astype(np.float64)
    want = {"scale": wide * 5, "softcap": 5 * np.tanh(wide / 5), "clip": np.clip(wide, -5, 5)}[name]
    assert np.allclose(y, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("width", [1, 5, 16, 1000])
def test_softmax(isa: int, width: int) -> None:
    x = rows(3, width, scale=20.0) - np.float32(50)
    y = np.empty_like(x)
    library().llmx_test_softmax(isa, x.ctypes.data, y.ctypes.data, 3, width)
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    assert np.allclose(y, e / e.sum(-1, keepdims=True), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("pairs", [0, 1])
@pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (20, 12), (32, 2), (80, 40)])
def test_rope_turns_pairs_and_keeps_the_rest(isa: int, pairs: int, dim: int, rotary: int) -> None:
    heads, half = 3, rotary // 2
    angles = np.random.default_rng(4).random((9, half)) * 6
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    positions = np.array([8, 0, 3, 3], np.int32)
    x = rows(4, heads * dim)
    y = np.empty_like(x)
    library().llmx_test_rope(isa, table.ctypes.data, rotary, pairs, positions.ctypes.data, x.ctypes.data, y.ctypes.data, 4, heads, dim)
    wide, got = x.reshape(4, heads, dim).astype(np.float64), y.reshape(4, heads, dim)
    one, two = (slice(0, rotary, 2), slice(1, rotary, 2)) if pairs else (slice(0, half), slice(half, rotary))
    turn = np.exp(1j * angles[positions])[:, None, :]
    want = (wide[..., one] + 1j * wide[..., two]) * turn
    assert np.allclose(got[..., one], want.real, atol=2e-6) and np.allclose(got[..., two], want.imag, atol=2e-6)
    assert np.array_equal(got[..., rotary:], x.reshape(4, heads, dim)[..., rotary:])


@pytest.mark.parametrize("isa", LEVELS)
def test_rows_do_not_see_each_other(isa: int) -> None:
    """The same row gives the same bits at any place among others."""
    x = rows(33, 50)
    x[20] = x[3]
    y = np.empty_like(x)
    library().llmx_test_norm(isa, 0, 1e-5, 0, None, None, x.ctypes.data, None, 0, y.ctypes.data, 33, 50, 1)
    assert np.array_equal(y[20], y[3])
    one = np.empty((1, 50), np.float32)
    library().llmx_test_norm(isa, 0, 1e-5, 0, None, None, x[3:4].ctypes.data, None, 0, one.ctypes.data, 1, 50, 1)
    assert np.array_equal(one[0], y[3])

"""Native paged attention against a float64 reference, and the invariance that docs/invariance.md promises, bit by bit.

Tolerances (of outputs, which are averages of values of size 1): float32 pages 1e-5; bf16 pages 3e-2 against the exact
result, because queries, keys, values and probabilities are rounded to 8 bits; 4e-3 against a reference that rounds queries,
keys and values alike (what is left is the rounding of probabilities). int8 pages 1e-3 against a reference that rounds keys and
values alike (queries and probabilities have 15 bits), 1e-1 against the exact result.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass, replace

import numpy as np
import pytest

from llmx_cpu.native import ISA_NAMES, best_isa, library, pointer

LEVELS = range(ISA_NAMES.index(best_isa()) + 1)
BLOCK = 16
F32, BF16, I8 = 0, 1, 2
KV_TYPES = pytest.mark.parametrize("kv_type", [F32, BF16, I8], ids=["f32", "bf16", "int8"])


class TestAttention(ctypes.Structure):
    """TestAttention of csrc/capi_attention.cpp."""

    __test__ = False
    _fields_ = [
        *[(name, c_int32) for name in ("isa", "kv_type", "kv_heads", "head_dim", "v_head_dim", "q_heads", "n", "window")],
        *[(name, c_int64) for name in ("block_bytes", "layer_offset", "stride")],
        *[(name, c_void_p) for name in ("pages", "table", "slot", "q", "start", "query", "k", "v", "sinks", "alibi", "out")],
        *[(name, c_int64) for name in ("ld_query", "ld_k", "ld_v", "ld_out")],
        *[(name, c_float) for name in ("scale", "soft_cap")],
        *[(name, c_int32) for name in ("threads", "backwards")],
    ]


@dataclass(frozen=True)
class Shape:
    """What an attention layer looks like."""

    kv_type: int = BF16
    q_heads: int = 3
    kv_heads: int = 1
    head_dim: int = 64
    v_head_dim: int = 64
    window: int = 0  # -1: every row sees the whole request
    soft_cap: float = 0.0
    sinks: bool = False
    alibi: bool = False

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


@dataclass(frozen=True)
class Sequence:
    """All rows of one request."""

    query: np.ndarray  # [n, q_heads, head_dim]
    k: np.ndarray  # [n, kv_heads, head_dim]
    v: np.ndarray  # [n, kv_heads, v_head_dim]

    def __len__(self) -> int:
        return len(self.query)


def sequence(shape: Shape, length: int, seed: int = 0) -> Sequence:
    rng = np.random.default_rng(1000 * length + seed)

    def normal(*dims: int) -> np.ndarray:
        return rng.normal(size=dims).astype(np.float32)

    query, k = normal(length, shape.q_heads, shape.head_dim), normal(length, shape.kv_heads, shape.head_dim)
    return Sequence(2 * query, k, normal(length, shape.kv_heads, shape.v_head_dim))


def head_values(shape: Shape) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Sinks and alibi slopes per head."""
    heads = np.arange(shape.q_heads, dtype=np.float32)
    return (heads * 0.7 - 1 if shape.sinks else None), (2.0 ** -(1 + heads) if shape.alibi else None)


class Pages:
    """Pages of one group with several layers, and block tables with shuffled blocks."""

    LAYERS, LAYER = 3, 1

    def __init__(self, shape: Shape, isa: int, slots: int, max_tokens: int):
        self._library, self.shape, self.isa = library(), shape, isa
        self._library.llmx_test_kv_layer_bytes.restype = self._library.llmx_test_attention.restype = c_int64
        self.layer_bytes = self._library.llmx_test_kv_layer_bytes(shape.kv_type, shape.kv_heads, shape.head_dim, shape.v_head_dim)
        self.block_bytes = self.LAYERS * self.layer_bytes
        per_slot = max_tokens // BLOCK + 2
        blocks = np.random.default_rng(5).permutation(slots * per_slot) + 1
        self.table = np.ascontiguousarray(blocks.reshape(slots, per_slot), dtype=np.int32)
        memory = np.zeros((slots * per_slot + 1) * self.block_bytes + 64, dtype=np.uint8)
        self.pages = memory[-memory.ctypes.data % 64 :]

    def _arguments(self, rows: list[tuple[int, int, Sequence]], threads: int, backwards: bool) -> tuple[TestAttention, list[np.ndarray], np.ndarray]:
        """rows: (slot, start, new rows)."""
        shape = self.shape
        slot, start = (np.array([row[i] for row in rows], dtype=np.int32) for i in range(2))
        counts = np.array([len(row[2]) for row in rows], dtype=np.int32)
        query, k, v = (np.concatenate([getattr(row[2], name).reshape(len(row[2]), -1) for row in rows]) for name in ("query", "k", "v"))
        out = np.full((len(query), shape.q_heads * shape.v_head_dim), np.nan, dtype=np.float32)
        sinks, alibi = head_values(shape)
        arguments = TestAttention(
            self.isa, shape.kv_type, shape.kv_heads, shape.head_dim, shape.v_head_dim, shape.q_heads, len(rows), shape.window,
            self.block_bytes, self.LAYER * self.layer_bytes, self.table.shape[1],
            pointer(self.pages), pointer(self.table), pointer(slot), pointer(counts), pointer(start),
            pointer(query), pointer(k), pointer(v), pointer(sinks), pointer(alibi), pointer(out),
            query.shape[1], k.shape[1], v.shape[1], out.shape[1], shape.scale, shape.soft_cap, threads, backwards,
        )  # fmt: skip
        return arguments, [slot, start, counts, query, k, v, *[a for a in (sinks, alibi) if a is not None]], out

    def run(self, rows: list[tuple[int, int, Sequence]], threads: int = 1, backwards: bool = False) -> list[np.ndarray]:
        """Writes the new rows and attends; one [q, q_heads, v_head_dim] per request."""
        arguments, _keep, out = self._arguments(rows, threads, backwards)
        total = len(out)
        middle = total // 3
        for begin, end in ((middle, total), (0, middle)):  # any partition, any order
            self._library.llmx_test_kv_write(ctypes.byref(arguments), c_int64(begin), c_int64(end))
        self.merges = c_int64(0)
        self.items = self._library.llmx_test_attention(ctypes.byref(arguments), ctypes.byref(self.merges))
        ends = np.cumsum([len(row[2]) for row in rows])
        return [part.reshape(len(part), self.shape.q_heads, -1) for part in np.split(out, ends[:-1])]


def part(whole: Sequence, begin: int, end: int) -> Sequence:
    return Sequence(whole.query[begin:end], whole.k[begin:end], whole.v[begin:end])


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def int8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and float32 scales [..., 1] of rows rounded to int8, one scale per token and head."""
    largest = np.abs(values).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(values * inverse), largest / np.float32(127)


def expected(shape: Shape, s: Sequence, rows: np.ndarray, rounded: bool) -> np.ndarray:
    """Outputs of the query rows `rows` in float64; rounded: queries, keys and values as pages of this type have them (int8: queries are not)."""
    query, k, v = s.query[rows] * np.float32(shape.scale), s.k, s.v
    if rounded and shape.kv_type == I8:
        (k, k_scale), (v, v_scale) = int8(k), int8(v)
        k, v = k * k_scale.astype(np.float64), v * v_scale.astype(np.float64)
    elif rounded:
        query, k, v = bf16(query), bf16(k), bf16(v)
    sinks, alibi = head_values(shape)
    distance = rows[:, None] - np.arange(len(s))[None, :]
    hidden = np.zeros_like(distance, dtype=bool) if shape.window < 0 else (distance < 0) | ((distance >= shape.window) if shape.window else False)
    out = np.empty((len(rows), shape.q_heads, shape.v_head_dim))
    for head in range(shape.q_heads):
        kv_head = head // (shape.q_heads // shape.kv_heads)
        score = query[:, head].astype(np.float64) @ k[:, kv_head].astype(np.float64).T
        if shape.soft_cap:
            score = shape.soft_cap * np.tanh(score / shape.soft_cap)
        if alibi is not None:
            score -= alibi[head] * distance
        score[hidden] = -np.inf
        top = score.max(axis=1, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, sinks[head])
        p = np.exp(score - top)
        total = p.sum(axis=1, keepdims=True)
        if sinks is not None:
            total += np.exp(sinks[head] - top)
        out[:, head] = p / total @ v[:, kv_head].astype(np.float64)
    return out


@pytest.fixture(params=LEVELS, ids=[ISA_NAMES[i] for i in LEVELS])
def isa(request):
    return request.param


def check_against_reference(shape: Shape, isa: int, length: int) -> None:
    s = sequence(shape, length)
    got = Pages(shape, isa, 1, length).run([(0, 0, s)])[0]
    rows = np.unique(np.concatenate([np.arange(min(length, 20)), np.arange(length - min(length, 20), length), np.arange(0, length, 37)]))
    assert not np.isnan(got).any()
    if shape.kv_type == F32:
        assert np.abs(got[rows] - expected(shape, s, rows, False)).max() < 1e-5
    elif shape.kv_type == I8:
        assert np.abs(got[rows] - expected(shape, s, rows, True)).max() < 1e-3
        assert np.abs(got[rows] - expected(shape, s, rows, False)).max() < 1e-1
    else:
        assert np.abs(got[rows] - expected(shape, s, rows, True)).max() < 4e-3
        assert np.abs(got[rows] - expected(shape, s, rows, False)).max() < 3e-2


@KV_TYPES
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 255, 256, 257, 511, 513, 700])
def test_lengths(isa, kv_type, length):
    check_against_reference(Shape(kv_type), isa, length)


@KV_TYPES
@pytest.mark.parametrize("head_dim", [2, 8, 14, 16, 24, 40, 80, 96, 112, 128, 192, 256])
def test_head_dims(isa, kv_type, head_dim):
    check_against_reference(Shape(kv_type, head_dim=head_dim, v_head_dim=head_dim), isa, 70)


@KV_TYPES
@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(16, 64), (192, 128), (64, 7), (10, 33)])
def test_keys_and_values_of_different_widths(isa, kv_type, head_dim, v_head_dim):
    check_against_reference(Shape(kv_type, 4, 2, head_dim, v_head_dim), isa, 45)


@KV_TYPES
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (5, 5), (9, 3), (8, 2), (14, 2), (10, 2), (8, 1), (11, 1), (13, 1), (71, 1)])
def test_head_groups(isa, kv_type, q_heads, kv_heads):
    check_against_reference(Shape(kv_type, q_heads, kv_heads, 32, 32), isa, 90)


@KV_TYPES
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 256, 257, 520])
def test_bidirectional_lengths(isa, kv_type, length):
    check_against_reference(Shape(kv_type, 4, 2, 32, 32, window=-1), isa, length)


@KV_TYPES
def test_bidirectional_bits_depend_on_the_request_alone(isa, kv_type):
    shape = Shape(kv_type, 4, 2, 32, 32, window=-1, soft_cap=30.0)
    lengths = [300, 1, 16, 47, 513, 5]
    sequences = [sequence(shape, length, seed=i) for i, length in enumerate(lengths)]
    alone = [Pages(shape, isa, 1, len(s)).run([(0, 0, s)])[0] for s in sequences]
    order = [4, 0, 5, 2, 1, 3]
    for threads, backwards in ((1, False), (2, False), (16, True)):
        pages = Pages(shape, isa, len(lengths), max(lengths))
        together = pages.run([(slot, 0, sequences[slot]) for slot in order], threads, backwards)
        for slot, result in zip(order, together, strict=True):
            assert result.tobytes() == alone[slot].tobytes(), (slot, threads)


@KV_TYPES
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 255, 256, 257, 300, 1000])
def test_windows(isa, kv_type, window):
    check_against_reference(Shape(kv_type, head_dim=32, v_head_dim=32, window=window), isa, 600)


@KV_TYPES
@pytest.mark.parametrize(
    "options",
    [
        {"soft_cap": 5.0},
        {"soft_cap": 50.0},
        {"sinks": True},
        {"alibi": True},
        {"sinks": True, "window": 20},
        {"soft_cap": 20.0, "sinks": True, "alibi": True, "window": 270},
    ],
)
def test_options(isa, kv_type, options):
    check_against_reference(Shape(kv_type, 8, 2, 32, 32, **options), isa, 300)


@KV_TYPES
def test_a_long_prompt(isa, kv_type):
    check_against_reference(Shape(kv_type, 9, 3), isa, 1500)


INVARIANT_SHAPES = [
    Shape(BF16, 9, 3),
    Shape(F32, 9, 3),
    Shape(BF16, 14, 2, 32, 32, window=100),
    Shape(F32, 4, 4, 24, 24, soft_cap=10.0, sinks=True),
    Shape(BF16, 8, 1, 48, 40, alibi=True, window=300, sinks=True),
    Shape(I8, 9, 3),
    Shape(I8, 8, 1, 48, 40, alibi=True, window=300, sinks=True),
]


def run_in_chunks(shape: Shape, isa: int, s: Sequence, chunk: int, threads: int = 1) -> np.ndarray:
    pages = Pages(shape, isa, 1, len(s))
    parts = [pages.run([(0, begin, part(s, begin, min(begin + chunk, len(s))))], threads)[0] for begin in range(0, len(s), chunk)]
    return np.concatenate(parts)


@pytest.mark.parametrize("shape", INVARIANT_SHAPES, ids=str)
@pytest.mark.parametrize("length", [1, 17, 256, 257, 530])
def test_chunks_of_the_prompt_give_equal_bits(isa, shape, length):
    s = sequence(shape, length)
    whole = run_in_chunks(shape, isa, s, length)
    for chunk in (1, 7, 100):
        assert run_in_chunks(shape, isa, s, chunk).tobytes() == whole.tobytes(), f"chunks of {chunk}"


@pytest.mark.parametrize("shape", INVARIANT_SHAPES, ids=str)
def test_partials_and_order_of_items_give_equal_bits(isa, shape):
    s = sequence(shape, 1300)
    pages = Pages(shape, isa, 1, len(s))
    whole = pages.run([(0, 0, s)])[0]
    assert pages.merges.value == 0
    for begin in (1299, 1290, 1100):
        for threads, backwards in ((1, False), (2, False), (2, True), (16, True)):
            again = pages.run([(0, begin, part(s, begin, len(s)))], threads, backwards)[0]
            assert again.tobytes() == whole[begin:].tobytes(), (begin, threads)
        assert pages.merges.value > 0 or shape.window > 0  # the last plan did cut the long rows


@pytest.mark.parametrize("shape", INVARIANT_SHAPES, ids=str)
def test_a_request_does_not_depend_on_its_neighbours(isa, shape):
    lengths = [300, 1, 16, 47, 513, 5]
    sequences = [sequence(shape, length, seed=i) for i, length in enumerate(lengths)]
    alone = [Pages(shape, isa, 1, len(s)).run([(0, 0, s)])[0] for s in sequences]
    pages = Pages(shape, isa, len(lengths), max(lengths))
    order = [4, 0, 5, 2, 1, 3]  # slots are not in the order of the rows
    together = pages.run([(slot, 0, sequences[slot]) for slot in order], threads=2)
    for slot, result in zip(order, together, strict=True):
        assert result.tobytes() == alone[slot].tobytes()
    mixed = pages.run([(slot, len(sequences[slot]) - 1, part(sequences[slot], len(sequences[slot]) - 1, len(sequences[slot]))) for slot in order])
    for slot, result in zip(order, mixed, strict=True):  # decode rows beside each other
        assert result.tobytes() == alone[slot][-1:].tobytes()


def test_blocks_before_the_window_may_be_the_null_page(isa):
    shape = Shape(BF16, 9, 3, window=40)
    s = sequence(shape, 400)
    pages = Pages(shape, isa, 1, 400)
    whole = pages.run([(0, 0, s)])[0]
    pages.table[0, : (399 - 39) // BLOCK] = 0
    assert pages.run([(0, 399, part(s, 399, 400))])[0].tobytes() == whole[399:].tobytes()
    assert not pages.pages[: pages.block_bytes].any()


@KV_TYPES
def test_later_keys_of_the_tile_do_not_leak_even_when_they_are_not_numbers(isa, kv_type):
    shape = Shape(kv_type, 3, 1, 32, 32)
    s = sequence(shape, 40)
    clean = Pages(shape, isa, 1, 40).run([(0, 0, s)])[0]
    s.k[30:] = np.nan
    dirty = Pages(shape, isa, 1, 40).run([(0, 0, s)])[0]
    assert dirty[:30].tobytes() == clean[:30].tobytes()
    assert np.isnan(dirty[30:]).all()


def test_layout_of_pages(isa):
    for kv_type in (F32, BF16, I8):
        shape = Shape(kv_type, 2, 2, 6, 10)
        s = sequence(shape, 20)
        pages = Pages(shape, isa, 1, 20)
        pages.run([(0, 0, s)])
        element = np.dtype({F32: np.float32, BF16: np.uint16, I8: np.int8}[kv_type])
        for token in range(20):
            begin = int(pages.table[0, token // BLOCK]) * pages.block_bytes + pages.LAYER * pages.layer_bytes
            layer = pages.pages[begin : begin + pages.layer_bytes].view(element)
            at = token % BLOCK
            if kv_type == I8:
                for part_of, width, rows in ((layer[: 2 * (6 + 4) * BLOCK], 6, s.k[token]), (layer[2 * (6 + 4) * BLOCK :], 10, s.v[token])):
                    heads = part_of.reshape(2, -1)
                    codes, scales = heads[:, : width * BLOCK], np.ascontiguousarray(heads[:, width * BLOCK :]).view(np.float32)
                    pairs = codes.reshape(2, 3, BLOCK, 2)[:, :, at] if width == 6 else codes.reshape(2, BLOCK // 2, 10, 2)[:, at // 2, :, at % 2]
                    want, want_scales = int8(rows)
                    assert pairs.reshape(2, width).tolist() == want.tolist()
                    assert scales[:, at].tolist() == want_scales[:, 0].tolist()
                continue
            k, v = layer[: 2 * 6 * BLOCK], layer[2 * 6 * BLOCK :]
            if kv_type == F32:
                assert k.reshape(2, 6, BLOCK)[:, :, at].tolist() == s.k[token].tolist()
                assert v.reshape(2, BLOCK, 10)[:, at].tolist() == s.v[token].tolist()
            else:
                k_bits, v_bits = k.reshape(2, 3, BLOCK, 2)[:, :, at].reshape(2, 6), v.reshape(2, BLOCK // 2, 10, 2)[:, at // 2, :, at % 2]
                assert (k_bits.astype(np.uint32) << 16).view(np.float32).tolist() == bf16(s.k[token]).tolist()
                assert (v_bits.astype(np.uint32) << 16).view(np.float32).tolist() == bf16(s.v[token]).tolist()


def test_blocks_are_zeroed_and_copied_whole():
    shape = Shape(BF16, 2, 2, 8, 8)
    pages = Pages(shape, 0, 1, 40)
    pages.pages[:] = 7
    arguments, _keep, _out = pages._arguments([(0, 0, sequence(shape, 1))], 1, False)
    size = pages.block_bytes
    library().llmx_test_kv_block(ctypes.byref(arguments), 0, 0, 2)
    assert [int(pages.pages[i * size : (i + 1) * size].sum()) for i in (1, 2, 3)] == [7 * size, 0, 7 * size]
    pages.pages[3 * size : 4 * size] = np.arange(size, dtype=np.uint8)
    library().llmx_test_kv_block(ctypes.byref(arguments), 1, 3, 2)
    assert pages.pages[2 * size : 3 * size].tolist() == pages.pages[3 * size : 4 * size].tolist()
    assert int(pages.pages[size]) == 7


def test_levels_agree_to_rounding():
    for kv_type, tolerance in ((F32, 2e-5), (BF16, 8e-3), (I8, 2e-3)):
        shape = replace(INVARIANT_SHAPES[0], kv_type=kv_type)
        s = sequence(shape, 300)
        results = [Pages(shape, isa, 1, 300).run([(0, 0, s)])[0] for isa in LEVELS]
        for other in results[1:]:
            assert np.abs(other - results[0]).max() < tolerance

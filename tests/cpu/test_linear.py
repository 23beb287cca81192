"""Products with packed weights: against numpy, and bit equality over rows, threads and cuts of the columns."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from tests.blocks import BLOCK_TYPES, random_tensor
from tests.cpu.numpy_interpreter import round_bf16, round_int8, round_int16

from llmx.executor import BLOCK_BYTES, HostTensor
from llmx.weights.quant import dequantize, quantize
from llmx_cpu.native import ISA_NAMES, WEIGHT_TYPES, PartRecord, best_isa, library

LEVELS = range(ISA_NAMES.index(best_isa()) + 1)
ROWS = (70, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 33)


class Engine:
    """A native engine that only holds weights."""

    def __init__(self, isa: int, threads: int) -> None:
        self.isa = isa
        self.pointer = library().llmx_engine_new(isa, threads)
        assert self.pointer

    def close(self) -> None:
        library().llmx_engine_free(self.pointer)

    def weight(self, tensor: HostTensor, as_f32: bool = False, int8: bool = False) -> int:
        rows, cols = tensor.shape
        stored = WEIGHT_TYPES[tensor.dtype]
        data = np.ascontiguousarray(tensor.data)
        handle = library().llmx_engine_weight(self.pointer, stored, 0 if as_f32 else stored, int(int8), rows, cols, data.ctypes.data, data.shape[1])
        assert handle >= 0, library().llmx_error()
        return int(handle)

    def vector(self, values: np.ndarray) -> int:
        return int(library().llmx_engine_vector(self.pointer, values.ctypes.data, values.size))

    def linear(
        self, parts: list[tuple[int, int, int]], x: np.ndarray, width: int, residual: np.ndarray | None = None, fine: np.ndarray | None = None
    ) -> np.ndarray:
        """parts: (weight, bias or -1, first column). fine: bool [rows], rows rounded to int16; all when None."""
        flags = None if fine is None else fine.astype(np.uint8)
        records = (PartRecord * len(parts))(*[PartRecord(w, b, c, 0) for w, b, c in parts])
        y = np.full((len(x), width), np.nan, np.float32)
        done = library().llmx_test_linear(
            self.pointer, ctypes.addressof(records), len(parts), x.ctypes.data, len(x), x.shape[1], y.ctypes.data, width,
            None if residual is None else residual.ctypes.data, len(x),
            None if flags is None else flags.ctypes.data,
        )  # fmt: skip
        assert done == 0, library().llmx_error()
        return y

    def unpack(self, weight: int, row: int, cols: int) -> np.ndarray:
        out = np.empty(cols, np.float32)
        library().llmx_test_unpack_row(self.pointer, weight, row, out.ctypes.data)
        return out


@pytest.fixture(params=[(isa, threads) for isa in LEVELS for threads in (1, 2)], ids=lambda p: f"{ISA_NAMES[p[0]]}-{p[1]}")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(*request.param)
    yield made
    made.close()


def tensor_of(scheme: str, rows: int, cols: int, seed: int = 0) -> HostTensor:
    if scheme in BLOCK_TYPES and scheme not in ("q4_0", "q4_1", "q8_0"):
        return random_tensor(scheme, rows, cols, seed)
    values = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)
    return quantize(values, scheme)


def fitting(scheme: str, cols: int) -> int:
    """At least `cols`, in whole blocks."""
    block = max(BLOCK_BYTES[scheme][0], 1)
    return -(-cols // block) * block


def inputs(rows: int, cols: int, seed: int = 1) -> np.ndarray:
    """Rows of normal values, with a zero row, a zero block and an outlier among them."""
    x = np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)
    x[2] = 0
    x[3, :32] = 0
    x[4, 5] = 300.0
    return x


def rounded(engine: Engine, x: np.ndarray, scheme: str, int8: bool = False) -> np.ndarray:
    """Inputs as the products of this level take them."""
    if scheme.startswith("q"):
        return round_int8(x) if int8 else round_int16(x)
    return round_bf16(x) if scheme == "bf16" and engine.isa == ISA_NAMES.index("avx512") else x.astype(np.float64)


@pytest.mark.parametrize(("rows", "cols"), [(16, 32), (50, 96), (33, 64), (1, 160), (130, 576)])
@pytest.mark.parametrize(("scheme", "int8"), [*((scheme, False) for scheme in WEIGHT_TYPES), *((scheme, True) for scheme in BLOCK_TYPES)])
def test_linear_equals_numpy_and_rows_are_independent(engine: Engine, scheme: str, int8: bool, rows: int, cols: int) -> None:
    cols = fitting(scheme, cols)
    tensor = tensor_of(scheme, rows, cols)
    weight = engine.weight(tensor, int8=int8)
    x = inputs(70, cols)
    want = rounded(engine, x, scheme, int8) @ dequantize(tensor).astype(np.float64).T
    whole = engine.linear([(weight, -1, 0)], x, rows)
    size = np.abs(rounded(engine, x, scheme, int8)) @ np.abs(dequantize(tensor)).T.astype(np.float64) + 1e-6
    assert (np.abs(whole - want) / size).max() < 4e-6
    for m in ROWS:
        assert np.array_equal(engine.linear([(weight, -1, 0)], x[:m].copy(), rows), whole[:m]), m
    assert np.array_equal(engine.linear([(weight, -1, 0)], x[37:41].copy(), rows), whole[37:41])


@pytest.mark.parametrize("scheme", BLOCK_TYPES)
def test_int8_and_int16_rows_lie_beside_each_other(engine: Engine, scheme: str) -> None:
    """Each row has the bits that it has where all rows are rounded alike, in tiles with both kinds, one kind, and at their edges."""
    cols = fitting(scheme, 96)
    tensor, x = tensor_of(scheme, 50, cols), inputs(70, cols)
    mixed, narrow = engine.weight(tensor), engine.weight(tensor, int8=True)
    want = {True: engine.linear([(mixed, -1, 0)], x, 50), False: engine.linear([(narrow, -1, 0)], x, 50)}
    rng = np.random.default_rng(5)
    for fine in (np.arange(70) < 20, np.arange(70) >= 32, np.zeros(70, bool), np.ones(70, bool), rng.random(70) < 0.5, rng.random(70) < 0.05):
        got = engine.linear([(mixed, -1, 0)], x, 50, fine=fine)
        assert np.array_equal(got, np.where(fine[:, None], want[True], want[False]))


@pytest.mark.parametrize("cols", [1, 7, 33, 95])
@pytest.mark.parametrize("scheme", ["f32", "f16", "bf16"])
def test_dense_columns_need_no_alignment(engine: Engine, scheme: str, cols: int) -> None:
    tensor = tensor_of(scheme, 21, cols)
    x = np.random.default_rng(2).standard_normal((19, cols)).astype(np.float32)
    want = rounded(engine, x, scheme) @ dequantize(tensor).astype(np.float64).T
    got = engine.linear([(engine.weight(tensor), -1, 0)], x, 21)
    assert np.abs(got - want).max() < 1e-5 * max(1.0, float(np.abs(want).max()))


def test_parts_of_different_storage_bias_and_residual(engine: Engine) -> None:
    """One product of parts of any storage: columns side by side, the residual added after the bias."""
    x = inputs(23, 256)
    residual = np.random.default_rng(5).standard_normal((23, 40 + 24 + 17 + 16 + 33 + 18)).astype(np.float32)
    bias = np.random.default_rng(6).standard_normal(24).astype(np.float32)
    parts, want, column = [], [], 0
    for scheme, rows in (("q4_1", 40), ("q8_0", 24), ("bf16", 17), ("f32", 16), ("q6_K", 33), ("q5_0", 18)):
        tensor = tensor_of(scheme, rows, 256, seed=rows)
        parts.append((engine.weight(tensor), engine.vector(bias) if rows == 24 else -1, column))
        want.append(engine.linear([(parts[-1][0], -1, 0)], x, rows) + (bias if rows == 24 else np.float32(0)))
        column += rows
    got = engine.linear(parts, x, column, residual)
    assert np.array_equal(got, residual + np.concatenate(want, axis=1))


@pytest.mark.parametrize("scheme", WEIGHT_TYPES)
def test_rows_come_back_from_panels(engine: Engine, scheme: str) -> None:
    cols = fitting(scheme, 96) * 3
    tensor = tensor_of(scheme, 37, cols)
    values, weight, full = dequantize(tensor), engine.weight(tensor), engine.weight(tensor, as_f32=True)
    for row in (0, 1, 15, 16, 36):
        assert np.array_equal(engine.unpack(weight, row, cols), values[row])
        assert np.array_equal(engine.unpack(full, row, cols), values[row])


@pytest.mark.parametrize("scheme", ["q4_1", "q2_K", "q6_K", "bf16", "f32"])
def test_nan_and_infinity_reach_the_output(engine: Engine, scheme: str) -> None:
    """A row with a NaN gives NaN (its request fails), and no other row does."""
    cols = fitting(scheme, 64)
    weight = engine.weight(tensor_of(scheme, 32, cols))
    x = inputs(6, cols)
    x[1, 40], x[5, 3] = np.nan, np.inf
    y = engine.linear([(weight, -1, 0)], x, 32)
    assert np.isnan(y[1]).all() and not np.isfinite(y[5]).any() and np.isfinite(y[[0, 2, 3, 4]]).all()


def test_weights_that_cannot_be_packed_are_refused() -> None:
    engine = Engine(0, 1)
    data = np.zeros((4, 40), np.uint8)
    assert library().llmx_engine_weight(engine.pointer, WEIGHT_TYPES["q8_0"], WEIGHT_TYPES["q8_0"], 0, 4, 40, data.ctypes.data, 40) == -1
    assert b"multiple of 32" in library().llmx_error()
    assert library().llmx_engine_weight(engine.pointer, WEIGHT_TYPES["q4_K"], WEIGHT_TYPES["q4_K"], 0, 1, 128, data.ctypes.data, 72) == -1
    assert b"multiple of 256" in library().llmx_error()
    assert library().llmx_engine_weight(engine.pointer, WEIGHT_TYPES["f32"], WEIGHT_TYPES["q8_0"], 0, 4, 32, data.ctypes.data, 40) == -1
    engine.close()


@pytest.mark.parametrize("scheme", BLOCK_TYPES)
def test_levels_agree_on_integers(scheme: str) -> None:
    """Integer products have exact sums at every level; what differs is one rounding per 32 columns."""
    cols = fitting(scheme, 128)
    tensor, x = tensor_of(scheme, 64, cols), inputs(9, cols)
    outputs = []
    for isa in LEVELS:
        engine = Engine(isa, 1)
        outputs.append(engine.linear([(engine.weight(tensor), -1, 0)], x, 64))
        engine.close()
    for other in outputs[1:]:
        assert np.abs(other - outputs[0]).max() < 2e-5 * np.abs(outputs[0]).max()

"""GroupedSource: GPTQ and AWQ matrices of a safetensors checkpoint, under the names and in the row order of dense ones.

A matrix [N, K] called X.weight is stored as, K inputs and N outputs, G groups along K, values of `bits` bits in int32 from the lowest bit on:

    GPTQ (AutoGPTQ, GPTQModel): X.qweight [K bits / 32, N] packed along K, X.qzeros [G, N bits / 32], X.scales [G, N], X.g_idx [K]: the group of each input
    AWQ (AutoAWQ, gemm):        X.qweight [K, N / 8] packed along N in the order 0 2 4 6 1 3 5 7, X.qzeros [G, N / 8] likewise, X.scales [G, N]

A weight is scale * (code - zero point). The first GPTQ format stores zero points less one; gptq_v2 and AWQ store them as they are. Matrices whose inputs
are not in groups one after the other (act-order), and 8-bit ones with zero points, become float16, rounded as a product in half precision is.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from llmx.errors import ModelError
from llmx.program.ops import QuantKey, WeightRef
from llmx.record import record
from llmx.weights.host_tensor import GROUP_SIZES, HostTensor
from llmx.weights.quant import dequantize, quant_key, quantize
from llmx.weights.quant.groups import stored
from llmx.weights.quantization_config import GroupFormat
from llmx.weights.safetensors import SafetensorsSource
from llmx.weights.transforms import fit

__all__ = ["GroupedSource"]

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # output j of eight lies in bits 4 * places[j] of its int32
_EDGE = 4096  # bytes of each end of a tensor that `raw` shows


@record
class _Matrix:
    """What is known of a stored matrix before it is read. dtype: what it becomes; why: the reason, where that is float16."""

    shape: tuple[int, int]
    dtype: str
    why: str = ""


class GroupedSource:
    """A WeightSource over a SafetensorsSource. Reads shapes, group indices and zero points when it is made.

    `notes` says what becomes dense. Raises ModelError naming file, tensor, value and limit for tensors that are missing or do not fit.
    """

    layout = "hf"

    def __init__(self, inner: SafetensorsSource, form: GroupFormat) -> None:
        self.path, self._inner, self._form = inner.path, inner, form
        names = set(inner.names())
        modules = sorted(name.removesuffix(".qweight") for name in names if name.endswith(".qweight"))
        if not modules:
            raise ModelError(f"quantization_config.quant_method is {form.method!r}, but no tensor ends with .qweight", path=self.path)
        self._matrices = {f"{module}.weight": self._look(module, names) for module in modules}
        packed = {f"{module}.{part}" for module in modules for part in ("qweight", "qzeros", "scales", "g_idx")}
        # some writers give every matrix a bias; one of zeros in a model without biases has no place and no effect
        idle = {name for module in modules if (name := f"{module}.bias") in names and not dequantize(inner.raw(name)).any()}
        self._names = [*(name for name in inner.names() if name not in packed | idle), *self._matrices]
        self._last: tuple[str, HostTensor] | None = None  # several slices of one matrix follow one another

    @property
    def notes(self) -> list[str]:
        """One line for each reason why matrices become float16."""
        reasons = dict.fromkeys(matrix.why for matrix in self._matrices.values() if matrix.why)
        counts = {why: [name for name, matrix in self._matrices.items() if matrix.why == why] for why in reasons}
        return [f"{len(names)} matrices become float16 while they are read, which takes more memory: {why} ({names[0]}, ...)" for why, names in counts.items()]

    def names(self) -> Iterable[str]:
        """All names, packed matrices as X.weight."""
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """As the dense matrix would have it, [N, K]."""
        return self._matrices[name].shape if name in self._matrices else self._inner.shape(name)

    def quant(self, name: str) -> QuantKey:
        """How `get` gives it."""
        return quant_key(self._matrices[name].dtype) if name in self._matrices else self._inner.quant(name)

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor with the ref's transforms applied. Raises ModelError naming file and tensor when it does not fit."""
        if ref.name not in self._matrices:
            return self._inner.get(ref)
        if self._last is None or self._last[0] != ref.name:
            self._last = (ref.name, self._read(ref.name))
        return fit(self._last[1], ref, self.path)

    def raw(self, name: str) -> HostTensor:
        """The tensor as stored; of a packed matrix the ends of its parts, and the format: enough to know it by."""
        if name not in self._matrices:
            return self._inner.raw(name)
        module = name.removesuffix(".weight")
        flat = [self._inner.raw(f"{module}.{part}").data.reshape(-1) for part in ("qweight", "qzeros", "scales")]
        ends = [end for data in flat for end in (data[:_EDGE], data[-_EDGE:])]
        data = np.concatenate([np.frombuffer(str(self._form).encode(), np.uint8), *ends])
        return HostTensor("u8", data.shape, data[None])

    def close(self) -> None:
        """Let go of all files. Idempotent."""
        self._last = None
        self._inner.close()

    def _look(self, module: str, names: set[str]) -> _Matrix:
        """Shapes checked against one another, and what the matrix becomes."""
        form, per = self._form, 32 // self._form.bits
        for part, kinds in (("qweight", ("i32",)), ("qzeros", ("i32",)), ("scales", ("f16", "bf16", "f32"))):
            name = f"{module}.{part}"
            if name not in names:
                raise ModelError(f"tensor {name!r} is missing beside {module}.qweight", path=self.path)
            found = self._inner.raw(name)
            if found.dtype not in kinds or len(found.shape) != 2:
                why = f"{' or '.join(kinds)} with two axes is what {form.method} stores"
                raise ModelError(f"tensor {name!r} is {found.dtype} {list(found.shape)}: {why}", path=self.path)
        packed = self._inner.shape(f"{module}.qweight")
        rows, cols = (packed[1], packed[0] * per) if form.method == "gptq" else (packed[1] * per, packed[0])
        group = cols if form.group_size == -1 else form.group_size
        if cols % 32 or cols % group:
            raise ModelError(f"tensor {module}.qweight has {cols} inputs: a multiple of 32 and of group_size {group} is needed", path=self.path)
        for part, width in (("scales", rows), ("qzeros", rows // per)):
            shape = self._inner.shape(f"{module}.{part}")
            if shape != (cols // group, width):
                why = f"qweight {list(packed)} with {form.bits} bits and group_size {form.group_size} asks for {[cols // group, width]}"
                raise ModelError(f"tensor '{module}.{part}' is {list(shape)}: {why}", path=self.path)
        symmetric, size = self._symmetric(module), next(size for size in reversed(GROUP_SIZES) if group % size == 0)
        if f"{module}.g_idx" in names and not np.array_equal(self._order(module, cols, cols // group), np.arange(cols) // group):
            return _Matrix((rows, cols), "f16", "their inputs are in act-order (desc_act, g_idx)")
        if form.bits == 8:
            return _Matrix((rows, cols), f"int8_g{size}") if symmetric else _Matrix((rows, cols), "f16", "8 bits with zero points other than 128")
        return _Matrix((rows, cols), f"int4_g{size}" if symmetric else f"int4z_g{size}")

    def _order(self, module: str, cols: int, groups: int) -> np.ndarray:
        tensor = self._inner.raw(f"{module}.g_idx")
        order = np.ascontiguousarray(tensor.data).view(np.int32).reshape(-1) if tensor.dtype == "i32" else np.empty(0, np.int32)
        if order.shape != (cols,) or order.min() < 0 or order.max() >= groups:
            raise ModelError(f"tensor '{module}.g_idx' is {tensor.dtype} {list(tensor.shape)}: {cols} i32 from 0 to {groups - 1} are needed", path=self.path)
        return order

    def _words(self, name: str) -> np.ndarray:
        tensor = self._inner.raw(name)
        return np.ascontiguousarray(tensor.data).view("<u4").reshape(tensor.shape)

    def _symmetric(self, module: str) -> bool:
        """Whether every zero point is the middle code; all of a word's at once."""
        middle = (1 << self._form.bits - 1) - self._form.plus_one
        return bool((self._words(f"{module}.qzeros") == sum(middle << shift for shift in range(0, 32, self._form.bits))).all())

    def _along_outputs(self, words: np.ndarray) -> np.ndarray:
        """uint8 [a, N] of int32 [a, N bits / 32]."""
        values = _unpacked(words, self._form.bits)
        if self._form.method == "awq":
            values = values[:, :, _AWQ_PLACES]
        return values.reshape(len(words), -1)

    def _read(self, name: str) -> HostTensor:
        module, matrix, form = name.removesuffix(".weight"), self._matrices[name], self._form
        words = self._words(f"{module}.qweight")
        if form.method == "gptq":
            codes = _unpacked(words, form.bits).transpose(1, 0, 2).reshape(matrix.shape)
        else:
            codes = np.ascontiguousarray(self._along_outputs(words).T)
        zeros = self._along_outputs(self._words(f"{module}.qzeros")).T.astype(np.int16) + form.plus_one
        given = dequantize(self._inner.raw(f"{module}.scales")).T
        scales = given.astype(np.float16)
        if not (np.isfinite(given).all() and np.array_equal(scales, given)):
            raise ModelError(f"tensor '{module}.scales' holds values that are no finite float16 numbers: convert it to float16", path=self.path)
        if matrix.dtype == "f16":
            return self._dense(module, codes, scales, zeros)
        finer = matrix.shape[1] // scales.shape[1] // quant_key(matrix.dtype).tensors[0][2]
        if form.bits == 8:
            codes = codes ^ 0x80
        data = stored(matrix.dtype, codes.view(np.int8) if form.bits == 8 else codes, np.repeat(scales, finer, axis=1), np.repeat(zeros, finer, axis=1))
        return HostTensor(matrix.dtype, matrix.shape, data)

    def _dense(self, module: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> HostTensor:
        cols, groups = codes.shape[1], scales.shape[1]
        order = self._order(module, cols, groups) if f"{module}.g_idx" in set(self._inner.names()) else np.arange(cols) // (cols // groups)
        values = scales.astype(np.float32)[:, order] * (codes.astype(np.int16) - zeros[:, order])
        return quantize(values, "f16")


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [a, b, 32 / bits] of int32 [a, b], from the lowest bit on."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values: np.ndarray = ((words[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return values

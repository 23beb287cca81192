"""Weights that are quantised while they are read: `--quantization int8 | int4`.

int8 is stored as q8_0 (one scale per 32 elements), int4 as q4_1 (a scale and a minimum per 32), with tables of one row per token
(embedding, head) as q8_0. How scales are chosen: llmx.weights.quant.fitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from llmx.errors import ModelError
from llmx.program.ops import QuantKey, WeightRef
from llmx.weights.host_tensor import HostTensor, WeightSource
from llmx.weights.quant import dequantize, quant_key
from llmx.weights.quant.fitted import fit_q4_1, fit_q8_0

__all__ = ["SCHEMES", "QuantisedSource"]

SCHEMES = ("int8", "int4")
_BLOCK = 32
_ROWS_AT_ONCE = 4096 * _BLOCK  # elements
_POSITIONS = ("wpe", "embed_positions")  # tables that are read by position, small and added as they are


class QuantisedSource:
    """A WeightSource over a dense one whose matrices come quantised. scheme: one of SCHEMES; vocab: rows of embedding and head, at least.

    `kept` names the matrices that stay as they are because their columns are not whole blocks. Raises ModelError where nothing can
    be quantised.
    """

    def __init__(self, inner: WeightSource, scheme: str, vocab: int, path: str) -> None:
        self._inner = inner
        matrices = {name: inner.shape(name) for name in inner.names() if len(inner.shape(name)) == 2 and not any(part in name for part in _POSITIONS)}
        self.kept = sorted(name for name, shape in matrices.items() if shape[-1] % _BLOCK)
        self._targets = {
            name: quant_key("q8_0" if scheme == "int8" or shape[0] >= vocab else "q4_1") for name, shape in matrices.items() if not shape[-1] % _BLOCK
        }
        if not self._targets:
            raise ModelError(f"no matrix has a multiple of {_BLOCK} columns, so none can be quantised to {scheme}: leave --quantization out", path=path)

    def names(self) -> Iterable[str]:
        """As stored."""
        return self._inner.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored."""
        return self._inner.shape(name)

    def quant(self, name: str) -> QuantKey:
        """How `get` gives it."""
        return self._targets.get(name) or self._inner.quant(name)

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor that `ref` wants, quantised after all changes of its shape. Raises ModelError as the source does."""
        target = self._targets.get(ref.name)
        if target is None:
            return self._inner.get(ref)
        return _quantise(self._inner.get(replace(ref, quant=self._inner.quant(ref.name))), str(target))

    def close(self) -> None:
        """The source is closed."""
        self._inner.close()


def _quantise(tensor: HostTensor, dtype: str) -> HostTensor:
    encode = fit_q8_0 if dtype == "q8_0" else fit_q4_1
    rows = max(1, _ROWS_AT_ONCE // tensor.cols)
    parts = []
    for first in range(0, tensor.rows, rows):
        data = tensor.data[first : first + rows]
        values = dequantize(HostTensor(tensor.dtype, (len(data), tensor.cols), data))
        parts.append(encode(values.reshape(-1, _BLOCK)).reshape(len(data), -1))
    return HostTensor(dtype, tensor.shape, np.concatenate(parts))

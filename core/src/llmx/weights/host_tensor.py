"""HostTensor: an array in host memory of any element type, also those that numpy lacks, and the WeightSource protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from llmx.record import record

if TYPE_CHECKING:  # headers are read without numpy, and without what Programs are made of
    import numpy as np

    from llmx.program.ops import QuantKey, WeightRef

__all__ = ["BLOCK_BYTES", "GROUP_SIZES", "HostTensor", "WeightSource"]

GROUP_SIZES = (32, 64, 128)  # elements of a group of the formats int4, int4z and int8 of llmx.weights.quant.groups

# dtype -> (elements per block, bytes per block). Block types as in ggml's ggml-common.h.
BLOCK_BYTES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "i32": (1, 4),
    "i64": (1, 8),
    "i8": (1, 1),
    "u8": (1, 1),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q2_K": (256, 84),
    "q3_K": (256, 110),
    "q4_K": (256, 144),
    "q5_K": (256, 176),
    "q6_K": (256, 210),
    **{f"int4_g{size}": (size, 2 + size // 2) for size in GROUP_SIZES},
    **{f"int4z_g{size}": (size, 4 + size // 2) for size in GROUP_SIZES},
    **{f"int8_g{size}": (size, 2 + size) for size in GROUP_SIZES},
}


@record
class HostTensor:
    """Row-major tensor: shape in elements, `data` uint8 [rows, bytes per row] (a view of a mapped file, or own memory).

    rows = product of all axes but the last; a one-dimensional tensor is one row.
    """

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows of `data`."""
        return int(self.data.shape[0])

    @property
    def cols(self) -> int:
        """Elements per row."""
        return self.shape[-1] if self.shape else 1

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return int(self.data.nbytes)


class WeightSource(Protocol):
    """The tensors of one checkpoint under canonical (Hugging Face) names. Opened once, closed after packing."""

    def names(self) -> Iterable[str]:
        """All canonical names."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as stored, row-major (out, in). Raises ModelError for an unknown name."""
        ...

    def quant(self, name: str) -> QuantKey:
        """How the tensor is stored."""
        ...

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor with the ref's transforms applied. Raises ModelError naming file and tensor when the shape differs."""
        ...

    def close(self) -> None:
        """Unmap. Views handed out before must not be used after."""
        ...

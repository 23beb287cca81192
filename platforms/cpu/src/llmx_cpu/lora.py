"""Adapters as the records of csrc/lora.h."""

from __future__ import annotations

import ctypes as C
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmx.executor import HostTensor, LoraPart, WholePart
from llmx_cpu.native import WEIGHT_TYPES, LoraRecord, call

__all__ = ["set_adapter"]

_WHOLE = 2  # csrc/lora.h: the bit of LlmxLora.kind


def set_adapter(engine: int, slot: int, targets: Sequence[str], tables: frozenset[int], parts: Mapping[str, LoraPart]) -> None:
    """Fill a slot, or empty it when there are no parts. targets: per part of the tape its name; tables: those that are embeddings.

    Raises PlatformError with the library's reason.
    """
    keep: list[Any] = []
    records = [_record(index, int(index in tables), parts[target], keep) for index, target in enumerate(targets) if target in parts]
    array = (LoraRecord * max(1, len(records)))(*records)
    call("llmx_engine_lora", engine, slot, C.addressof(array), len(records))


def _record(index: int, kind: int, part: LoraPart, keep: list[Any]) -> Any:
    if isinstance(part, WholePart):
        dtype = WEIGHT_TYPES[part.weight.dtype]
        return LoraRecord(index, 0, dtype, dtype, _address(part.weight, keep), None, None, 1.0, kind | _WHOLE)
    at = [_address(one, keep) for one in (part.a, part.b)]
    magnitude = None if part.magnitude is None else _floats(part.magnitude, keep)
    return LoraRecord(index, part.rank, WEIGHT_TYPES[part.a.dtype], WEIGHT_TYPES[part.b.dtype], *at, magnitude, part.scale, kind)


def _address(tensor: HostTensor, keep: list[Any]) -> int:
    array = np.ascontiguousarray(tensor.data)
    keep.append(array)
    return int(array.ctypes.data)


def _floats(values: np.ndarray, keep: list[Any]) -> int:
    array = np.ascontiguousarray(values, dtype=np.float32)
    keep.append(array)
    return int(array.ctypes.data)

"""Adapters as the records of csrc/lora.h."""

from __future__ import annotations

import ctypes as C
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmx.executor import AdapterPart, HostTensor
from llmx_cpu.native import WEIGHT_TYPES, LoraRecord, call

__all__ = ["set_adapter"]


def set_adapter(engine: int, slot: int, targets: Sequence[str], parts: Mapping[str, AdapterPart]) -> None:
    """Fill a slot, or empty it when there are no parts. targets: per part of the tape its name. Raises PlatformError with the library's reason."""
    keep: list[Any] = []
    records = []
    for index, target in enumerate(targets):
        part = parts.get(target)
        if part is not None:
            at = [_address(one, keep) for one in (part.a, part.b)]
            magnitude = None if part.magnitude is None else _floats(part.magnitude, keep)
            records.append(LoraRecord(index, part.rank, WEIGHT_TYPES[part.a.dtype], WEIGHT_TYPES[part.b.dtype], *at, magnitude, part.scale, 0))
    array = (LoraRecord * max(1, len(records)))(*records)
    call("llmx_engine_lora", engine, slot, C.addressof(array), len(records))


def _address(tensor: HostTensor, keep: list[Any]) -> int:
    array = np.ascontiguousarray(tensor.data)
    keep.append(array)
    return int(array.ctypes.data)


def _floats(values: np.ndarray, keep: list[Any]) -> int:
    array = np.ascontiguousarray(values, dtype=np.float32)
    keep.append(array)
    return int(array.ctypes.data)

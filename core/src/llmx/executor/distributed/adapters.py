"""Adapters on several ranks: each gets the rows or columns of its share of the base weight; and how they go to another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmx.executor.adapters import AdapterPart, LoraPart, WholePart
from llmx.executor.base import Reply
from llmx.program.passes.cuts import PartCut, Share
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor

__all__ = ["OUT_OF_MEMORY", "cut_parts", "packed", "unpacked", "without_memory"]

OUT_OF_MEMORY = Reply(False, error="host memory ran out")


def without_memory(control: Callable[[], Reply]) -> Reply:
    """What a control answers; where memory runs out meanwhile, that it failed: the other ranks then empty the slot too."""
    try:
        return control()
    except MemoryError:
        return OUT_OF_MEMORY


def cut_parts(parts: Mapping[str, LoraPart], cuts: Mapping[str, PartCut]) -> dict[str, LoraPart]:
    """One rank's share of an adapter. Where the base has its output rows, B has them; where it reads some of its input, A does, and what
    it adds is part of the sum that all ranks make together. Targets that are not cut are whole on every rank.
    """
    return {target: _cut(part, cuts[target]) if target in cuts else part for target, part in parts.items()}


def _cut(part: LoraPart, cut: PartCut) -> LoraPart:
    if isinstance(part, WholePart):
        return WholePart(_share(part.weight, cut))
    if cut.columns is not None:
        return replace(part, a=_share(part.a, cut))
    return replace(part, b=_share(part.b, cut))


def _share(tensor: HostTensor, cut: PartCut) -> HostTensor:
    if cut.columns is not None:
        (_, size), span = BLOCK_BYTES[tensor.dtype], cut.columns
        data = tensor.data[:, span.start * size : span.stop * size]
        return HostTensor(tensor.dtype, (tensor.shape[0], span.size), np.ascontiguousarray(data))
    rows = cut.rows or Share(0, tensor.shape[0])
    return HostTensor(tensor.dtype, (rows.size, *tensor.shape[1:]), tensor.data[rows.start : rows.stop])


def packed(parts: Mapping[str, LoraPart]) -> dict[str, Any]:
    """Plain values, for a message to a rank, by target: [A, B, scale, magnitude] of an AdapterPart, [weight] of a WholePart.

    A matrix is [dtype, shape, bytes], the magnitude None or the bytes of f32 [rows].
    """
    return {target: _packed(part) for target, part in parts.items()}


def _packed(part: LoraPart) -> list[Any]:
    if isinstance(part, WholePart):
        return [_plain(part.weight)]
    magnitude = None if part.magnitude is None else part.magnitude.astype(np.float32).tobytes()
    return [_plain(part.a), _plain(part.b), part.scale, magnitude]


def _plain(tensor: HostTensor) -> list[Any]:
    return [tensor.dtype, list(tensor.shape), tensor.data.tobytes()]


def unpacked(parts: Mapping[str, Any]) -> dict[str, LoraPart]:
    """What `packed` was given."""
    return {target: _unpacked(given) for target, given in parts.items()}


def _unpacked(given: list[Any]) -> LoraPart:
    if len(given) == 1:
        return WholePart(_tensor(given[0]))
    a, b, scale, magnitude = given
    return AdapterPart(_tensor(a), _tensor(b), scale, None if magnitude is None else np.frombuffer(magnitude, np.float32))


def _tensor(given: list[Any]) -> HostTensor:
    dtype, shape, data = given
    return HostTensor(dtype, tuple(shape), np.frombuffer(data, np.uint8).reshape(shape[0], -1))

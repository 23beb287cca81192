"""StorageAllocator: gives the memory under tensors back to the device and takes it again, while the tensors stay the objects that kernels hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

__all__ = ["StorageAllocator", "tensors_in"]


class StorageAllocator:
    """Of one executor. Tensors are held under a tag; what lies in memory that two of them share is moved once."""

    def __init__(self) -> None:
        self._held: dict[str, dict[int, torch.Tensor]] = {}
        self._away: dict[str, list[tuple[torch.Tensor, int, torch.Tensor | None]]] = {}

    def hold(self, tag: str, tensors: Iterable[torch.Tensor]) -> None:
        """These tensors belong to `tag` as well."""
        self._held.setdefault(tag, {}).update({one.untyped_storage().data_ptr(): one for one in tensors if one.numel()})

    @torch.inference_mode()
    def release(self, tag: str, *, keep: bool) -> int:
        """Bytes that the device has back. keep: a copy stays in host memory; otherwise the contents are lost."""
        away, size = [], 0
        for tensor in self._held.get(tag, {}).values():
            storage = tensor.untyped_storage()
            count = storage.nbytes()
            copy = torch.empty(count, dtype=torch.uint8).copy_(_bytes(tensor)) if keep else None
            storage.resize_(0)
            away.append((tensor, count, copy))
            size += count
        self._away[tag] = away
        if away and not away[0][0].is_cpu:
            torch.accelerator.empty_cache()
        return size

    @torch.inference_mode()
    def restore(self, tag: str) -> int:
        """Bytes that were taken from the device again: with what was kept in them, else zero."""
        size = 0
        for tensor, count, copy in self._away.pop(tag, []):
            tensor.untyped_storage().resize_(count)
            whole = _bytes(tensor)
            whole.zero_() if copy is None else whole.copy_(copy)
            size += count
        return size


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a kernel packed: tensors, mappings, lists, tuples and dataclasses of them. Those in a library's own layout have no storage."""
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, Mapping):
        yield from (tensor for one in value.values() for tensor in tensors_in(one))
    elif isinstance(value, list | tuple):
        yield from (tensor for one in value for tensor in tensors_in(one))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (tensor for one in fields(value) for tensor in tensors_in(getattr(value, one.name)))

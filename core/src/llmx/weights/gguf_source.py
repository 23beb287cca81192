"""GgufSource: the tensors of a GGUF model, whole or split, under canonical names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from llmx.errors import ModelError
from llmx.program.ops import QuantKey, WeightRef
from llmx.weights.gguf import GgufFile
from llmx.weights.host_tensor import HostTensor
from llmx.weights.names import canonical_name, config_from_gguf
from llmx.weights.quant import dequantize, quant_key
from llmx.weights.transforms import fit

__all__ = ["GgufSource", "split_paths"]

_SPLIT = re.compile(r"(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # settings of the model that are stored as tensors


def split_paths(path: str) -> list[str]:
    """All files of the model that `path` belongs to, in order. Raises ModelError naming the first shard that is missing."""
    match = _SPLIT.fullmatch(path)
    if match is None:
        return [path]
    count = int(match["count"])
    paths = [f"{match['stem']}-{index:05d}-of-{count:05d}.gguf" for index in range(1, count + 1)]
    for shard in paths:
        if not Path(shard).is_file():
            raise ModelError(f"this shard of {path} is missing: all {count} must lie in one directory", path=shard)
    return paths


class GgufSource:
    """A WeightSource over one GGUF model. metadata: that of the first file; config: a config.json-like dict.

    layout "gguf": q and k of llama files lie as rotary pairs. Raises ModelError as GgufFile does, and for shards that do not belong together.
    """

    layout = "gguf"

    def __init__(self, path: str) -> None:
        self.path = path
        paths = split_paths(path)
        self._files = [GgufFile(shard) for shard in paths]
        self.metadata: dict[str, Any] = self._files[0].metadata
        self._place: dict[str, tuple[GgufFile, str]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for file in self._files:
            for name, info in file.tensors.items():
                canonical = canonical_name(name, str(self.metadata.get("general.architecture")))
                if canonical in self._place:
                    raise ModelError(f"tensor {name!r} is also in {self._place[canonical][0].path}", path=file.path)
                self._place[canonical] = (file, name)
                shapes[name] = info.shape
        self._check_shards()
        factors = {name: _values(*self._place.pop(name)) for name in _ROPE_FACTORS if name in self._place}
        self.config = config_from_gguf(self.metadata, shapes, factors, path)

    def _check_shards(self) -> None:
        count = len(self._files)
        for index, file in enumerate(self._files):
            stated = file.metadata.get("split.count", 1), file.metadata.get("split.no", 0)
            if stated != (count, index) and (count > 1 or stated[0] not in (0, 1)):
                raise ModelError(
                    f"its metadata says shard {stated[1]} (from 0) of {stated[0]}, its place is {index} of {count}:"
                    " keep the names -00001-of-0000N.gguf that the files came with",
                    path=file.path,
                )
        total = self.metadata.get("split.tensors.count", 0) if count > 1 else 0
        if total and total != len(self._place):
            raise ModelError(f"the shards hold {len(self._place)} tensors, the first one declares {total}", path=self.path)

    def names(self) -> Iterable[str]:
        """All canonical names."""
        return self._place.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as stored, row-major. Raises ModelError for an unknown name."""
        file, stored = self._find(name)
        return file.tensors[stored].shape

    def quant(self, name: str) -> QuantKey:
        """How the tensor is stored. Raises ModelError for an unknown name or a type that is no weight format."""
        file, stored = self._find(name)
        try:
            return quant_key(file.tensors[stored].dtype)
        except ModelError as error:
            raise ModelError(f"tensor {stored!r}: {error}", path=file.path) from error

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor with the ref's transforms applied. Raises ModelError naming file and tensor when it does not fit."""
        file, stored = self._find(ref.name)
        return fit(file.tensor(stored), ref, file.path)

    def raw(self, name: str) -> HostTensor:
        """The tensor as stored."""
        file, stored = self._find(name)
        return file.tensor(stored)

    def close(self) -> None:
        """Let go of all files. Idempotent."""
        for file in self._files:
            file.close()

    def _find(self, name: str) -> tuple[GgufFile, str]:
        try:
            return self._place[name]
        except KeyError:
            raise ModelError(f"tensor {name!r} is missing", path=self.path) from None


def _values(file: GgufFile, name: str) -> np.ndarray:
    if file.tensors[name].dtype != "f32":
        raise ModelError(f"tensor {name!r} has type {file.tensors[name].dtype}, f32 is needed", path=file.path)
    return dequantize(file.tensor(name))

"""SafetensorsSource: the tensors of a safetensors checkpoint, one file or sharded with an index, as views of the mapped files.

File layout (github.com/huggingface/safetensors): header length u64 little endian, header JSON
{name: {dtype, shape, data_offsets: [begin, end]}}, then the data without gaps. Numbers in files are not trusted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llmx.errors import ModelError
from llmx.program.ops import QuantKey, WeightRef
from llmx.record import record
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.mapped import MappedFile
from llmx.weights.quant import quant_key
from llmx.weights.transforms import fit

__all__ = ["SafetensorsFile", "SafetensorsSource", "SafetensorsTensor", "checkpoint_files", "index_placement"]

_MAX_HEADER = 100_000_000  # bytes, the format's own limit
# dtype of the format -> (name here, bits per element); names outside BLOCK_BYTES are known but cannot be used as weights
_DTYPES: Mapping[str, tuple[str, int]] = {
    **{"F32": ("f32", 32), "F16": ("f16", 16), "BF16": ("bf16", 16), "I32": ("i32", 32), "I64": ("i64", 64), "I8": ("i8", 8), "U8": ("u8", 8)},
    **{"BOOL": ("bool", 8), "F64": ("f64", 64), "C64": ("c64", 64), "U16": ("u16", 16), "I16": ("i16", 16), "U32": ("u32", 32), "U64": ("u64", 64)},
    **{"F8_E4M3": ("f8_e4m3", 8), "F8_E5M2": ("f8_e5m2", 8), "F8_E8M0": ("f8_e8m0", 8), "F4": ("f4", 4)},
}


@record
class SafetensorsTensor:
    """Where a tensor lies: `start` and `nbytes` in bytes of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class SafetensorsFile:
    """One safetensors file. tensors: name -> SafetensorsTensor.

    Raises ModelError naming the file for a header past the end, JSON that is none, a duplicate name, an unknown dtype, sizes
    that do not fit the shape, overlaps, gaps, and data shorter or longer than declared.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = MappedFile(path)
        self.tensors: dict[str, SafetensorsTensor] = {}
        header, base = self._read_header()
        for name, entry in header.items():
            if name != "__metadata__":
                self.tensors[name] = self._parse(name, entry, base)
        self._check_cover(base)

    def _read_header(self) -> tuple[dict[str, Any], int]:
        size = self._file.size
        length = int.from_bytes(self._file.bytes[:8].tobytes(), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise ModelError(f"the header should be {length} bytes long, but the file has {size}: it is cut off or no safetensors file", path=self.path)
        try:
            header = json.loads(self._file.bytes[8 : 8 + length].tobytes(), object_pairs_hook=self._unique)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"the header is not JSON: {error}", path=self.path) from error
        if not isinstance(header, dict):
            raise ModelError("the header is not a JSON object", path=self.path)
        return header, 8 + length

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelError(f"{twice!r} stands twice in the header", path=self.path)
        return table

    def _parse(self, name: str, entry: Any, base: int) -> SafetensorsTensor:
        def whole(values: Any) -> bool:
            return isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63 for v in values)

        if not isinstance(entry, dict) or not whole(entry.get("shape")) or not whole(entry.get("data_offsets")) or len(entry["data_offsets"]) != 2:
            raise ModelError(f"tensor {name!r} has a malformed entry {str(entry)[:200]}: dtype, shape and data_offsets are needed", path=self.path)
        dtype = entry.get("dtype")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise ModelError(f"tensor {name!r} has the unknown dtype {dtype!r}; known: {', '.join(_DTYPES)}", path=self.path)
        short, bits = _DTYPES[dtype]
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if (end - begin) * 8 != math.prod(shape) * bits:
            raise ModelError(f"tensor {name!r} of shape {list(shape)} and dtype {dtype} cannot take bytes {begin} to {end}", path=self.path)
        return SafetensorsTensor(name, short, shape, base + begin, end - begin)

    def _check_cover(self, base: int) -> None:
        position = base
        for tensor in sorted(self.tensors.values(), key=lambda tensor: (tensor.start, tensor.nbytes)):
            if tensor.start != position:
                what = "overlaps the one before" if tensor.start < position else "leaves a gap before it"
                raise ModelError(f"tensor {tensor.name!r} {what}: the file is corrupt", path=self.path)
            position += tensor.nbytes
        if position != self._file.size:
            raise ModelError(
                f"the header declares {position} bytes, but the file has {self._file.size}: it is cut off or corrupt; download it again", path=self.path
            )

    def tensor(self, name: str) -> HostTensor:
        """The tensor as a view of the file. Raises ModelError for a dtype that cannot be used."""
        info = self.tensors[name]
        if info.dtype not in BLOCK_BYTES:
            raise ModelError(f"tensor {name!r} has dtype {info.dtype}, which is not supported; supported: f32, f16, bf16", path=self.path)
        rows = math.prod(info.shape[:-1])
        data = self._file.bytes[info.start : info.start + info.nbytes].reshape(rows, info.nbytes // max(rows, 1))
        return HostTensor(info.dtype, info.shape, data)

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._file.close()


class SafetensorsSource:
    """A WeightSource over the safetensors files of a directory. layout "hf": names and row order are those of transformers."""

    layout = "hf"

    def __init__(self, directory: str) -> None:
        self.path = directory
        paths, placed = checkpoint_files(directory)
        self._place: dict[str, SafetensorsFile] = {}
        self._files = [SafetensorsFile(path) for path in paths]
        for file in self._files:
            for name in file.tensors:
                if name in self._place:
                    raise ModelError(f"tensor {name!r} is also in {self._place[name].path}", path=file.path)
                self._place[name] = file
        for name, path in placed.items():
            if name not in self._place or self._place[name].path != path:
                raise ModelError(f"the index places tensor {name!r} in this file, which does not hold it", path=path)

    def names(self) -> Iterable[str]:
        """All names."""
        return self._place.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as stored, row-major. Raises ModelError for an unknown name."""
        return self._find(name).tensors[name].shape

    def quant(self, name: str) -> QuantKey:
        """How the tensor is stored. Raises ModelError for an unknown name or a dtype that is no weight format."""
        file = self._find(name)
        try:
            return quant_key(file.tensors[name].dtype)
        except ModelError as error:
            raise ModelError(f"tensor {name!r}: {error}", path=file.path) from error

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor with the ref's transforms applied. Raises ModelError naming file and tensor when it does not fit."""
        file = self._find(ref.name)
        return fit(file.tensor(ref.name), ref, file.path)

    def raw(self, name: str) -> HostTensor:
        """The tensor as stored. Raises ModelError for an unknown name or a dtype that cannot be used."""
        return self._find(name).tensor(name)

    def close(self) -> None:
        """Let go of all files. Idempotent."""
        for file in self._files:
            file.close()

    def _find(self, name: str) -> SafetensorsFile:
        try:
            return self._place[name]
        except KeyError:
            raise ModelError(f"tensor {name!r} is missing", path=self.path) from None


def checkpoint_files(directory: str) -> tuple[list[str], dict[str, str]]:
    """(files, {tensor: file that the index names}) of the safetensors checkpoint in a directory; without an index the dict is empty.

    Raises ModelError when there is none, when a shard is missing, and for directories that hold only pickled weights.
    """
    folder = Path(directory)
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [str(single)], {}
    if index.exists():
        return _files_of_index(folder, index)
    others = sorted(str(path) for path in folder.glob("*.safetensors"))
    if len(others) == 1:
        return others, {}
    if others:
        raise ModelError(f"{len(others)} safetensors files and no model.safetensors.index.json: the index of the checkpoint is missing", path=directory)
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"holds only pickled weights ({', '.join(pickled[:3])}), which can run code when read and are refused:"
            " convert them with `model.save_pretrained(directory, safe_serialization=True)` of transformers, a drafter as docs/drafting.md says",
            path=directory,
        )
    raise ModelError("holds no *.safetensors file", path=directory)


def index_placement(index: Path) -> dict[str, str]:
    """Tensor -> name of the file beside the index that holds it. Raises ModelError for an index that is none or that names other places."""
    try:
        table = json.loads(index.read_bytes())["weight_map"]
        placed = {str(name): table[name] for name in table}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"is not an index with a weight_map: {error!r}", path=str(index)) from error
    for name, shard in placed.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            raise ModelError(f"places tensor {name!r} in {shard!r}: only a file name in the same directory is allowed", path=str(index))
    if not placed:
        raise ModelError("its weight_map is empty", path=str(index))
    return placed


def _files_of_index(folder: Path, index: Path) -> tuple[list[str], dict[str, str]]:
    placed = index_placement(index)
    shards = sorted(set(placed.values()))
    for shard in shards:
        if not (folder / shard).is_file():
            raise ModelError(f"this shard is missing: {index.name} names {len(shards)} files; download it again", path=str(folder / shard))
    return [str(folder / shard) for shard in shards], {name: str(folder / shard) for name, shard in placed.items()}

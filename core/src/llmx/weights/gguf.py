"""GgufFile: the header of a GGUF file (versions 2 and 3, little endian) and its tensors as views of the mapped file.

Layout (ggml's docs/gguf.md): magic, version u32, tensor count u64, pair count u64; pairs (key, type, value); tensor infos
(name, dimensions with the fastest first, type, offset); padding to `general.alignment`; tensor data.

Reading the header costs one pass: string arrays (a vocabulary, its merges) are only walked, and decoded when asked for.
Nothing read from the file is trusted: every count, length and offset is checked against the file's size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from llmx.errors import ModelError
from llmx.record import record
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.mapped import MappedFile

__all__ = ["GgufFile", "GgufTensor", "StringArray"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_MAX_DIMS = 4  # GGML_MAX_DIMS
_MAX_NAME = 65535  # bytes of a key or tensor name; longer ones come only from corruption
_MAX_NESTING = 4  # arrays of arrays

# value type -> struct's letter; 8 is a string, 9 an array
_SCALARS: Mapping[int, Any] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9

# ggml type number -> name, as in ggml.h; those in BLOCK_BYTES can be read
_TYPE_NAMES: Mapping[int, str] = {
    **{0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1"},
    **{10: "q2_K", 11: "q3_K", 12: "q4_K", 13: "q5_K", 14: "q6_K", 15: "q8_K"},
    **{16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs"},
    **{24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4"},
}


@record
class GgufTensor:
    """Where a tensor lies: `shape` row-major (slowest axis first), `start` and `nbytes` in bytes of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class StringArray:
    """An array of strings in the file: its length is known, its text is decoded on `decode`."""

    def __init__(self, path: str, key: str, count: int, raw: memoryview) -> None:
        self._path, self._key, self._count, self._raw = path, key, count, raw  # raw: a view of the file, keeps it mapped

    def __len__(self) -> int:
        return self._count

    def decode(self) -> list[str]:
        """All strings. Raises ModelError when one is not UTF-8."""
        data = self._raw.tobytes()
        read, end, ends = _U64.unpack_from, 0, [0]
        for _ in range(self._count):
            end += 8 + read(data, end)[0]
            ends.append(end)
        out: list[str] = []
        try:
            out.extend(data[start + 8 : end].decode() for start, end in pairwise(ends))
        except UnicodeDecodeError as error:
            raise ModelError(f"metadata {self._key!r}[{len(out)}] is not UTF-8: {error.reason}", path=self._path) from error
        return out


class GgufFile:
    """One GGUF file. metadata: key -> int, float, bool, str, memoryview of numbers, list (bools, nested) or StringArray; tensors: name -> GgufTensor.

    Raises ModelError naming the file and the reason for anything that is not a complete, consistent file of supported types.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = MappedFile(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            cursor = _Cursor(self._file)
            num_tensors, num_pairs = self._read_preamble(cursor)
            for _ in range(num_pairs):
                key = cursor.name("metadata key")
                if key in self.metadata:
                    raise ModelError(f"metadata key {key!r} stands twice", path=path)
                self.metadata[key] = cursor.value(key, cursor.u32(), 0)
            self._read_tensors(cursor, num_tensors)
        except (struct.error, OverflowError) as error:
            raise ModelError(f"the header runs past the end of the file ({self._file.size} bytes): the file is cut off or corrupt", path=path) from error

    def _read_preamble(self, cursor: _Cursor) -> tuple[int, int]:
        magic = cursor.take(4)
        if magic != b"GGUF":
            raise ModelError(f"not a GGUF file: it begins with {magic!r}, not b'GGUF'", path=self.path)
        self.version = cursor.u32()
        if self.version not in (2, 3):
            swapped = int.from_bytes(self.version.to_bytes(4, "little"), "big")
            reason = "it is big endian" if swapped in (1, 2, 3) else "only versions 2 and 3 are supported"
            raise ModelError(f"GGUF version {self.version}: {reason}; convert the model again with a current llama.cpp", path=self.path)
        num_tensors, num_pairs = cursor.u64(), cursor.u64()
        for what, count, least in (("tensors", num_tensors, 24), ("metadata pairs", num_pairs, 13)):  # least: bytes that one takes
            if count > self._file.size // least:
                raise ModelError(f"the header declares {count} {what}, more than {self._file.size} bytes can hold", path=self.path)
        return num_tensors, num_pairs

    def _read_tensors(self, cursor: _Cursor, count: int) -> None:
        infos = []
        for _ in range(count):
            name = cursor.name("tensor name")
            dims = cursor.u32()
            if not 1 <= dims <= _MAX_DIMS:
                raise ModelError(f"tensor {name!r} has {dims} dimensions, 1 to {_MAX_DIMS} are possible", path=self.path)
            shape = tuple(reversed([cursor.u64() for _ in range(dims)]))
            infos.append((name, shape, cursor.u32(), cursor.u64()))
        alignment = self.metadata.get("general.alignment", 32)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise ModelError(f"general.alignment is {alignment!r}: it must be a power of two, 8 or more", path=self.path)
        base = -(-cursor.position // alignment) * alignment
        for name, shape, kind, offset in infos:
            if name in self.tensors:
                raise ModelError(f"tensor {name!r} stands twice", path=self.path)
            self.tensors[name] = self._check_tensor(name, shape, kind, offset, alignment, base)
        self._check_overlap()

    def _check_tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int, alignment: int, base: int) -> GgufTensor:
        dtype = _TYPE_NAMES.get(kind, "")
        if dtype not in BLOCK_BYTES:
            raise ModelError(
                f"tensor {name!r} has type {dtype or 'number'} ({kind}); supported: {', '.join(sorted(set(_TYPE_NAMES.values()) & set(BLOCK_BYTES)))}."
                " Use a file quantised to one of these",
                path=self.path,
            )
        elements, size = BLOCK_BYTES[dtype]
        if min(shape) < 1 or shape[-1] % elements:
            raise ModelError(f"tensor {name!r} has shape {list(shape)}: rows of {dtype} hold a multiple of {elements} elements, no axis is 0", path=self.path)
        nbytes = math.prod(shape) // elements * size
        if offset % alignment:
            raise ModelError(f"tensor {name!r} starts at offset {offset}, which is no multiple of the alignment {alignment}", path=self.path)
        if base + offset + nbytes > self._file.size:
            raise ModelError(
                f"tensor {name!r} ends at byte {base + offset + nbytes}, but the file has {self._file.size}: it is cut off; download it again", path=self.path
            )
        return GgufTensor(name, dtype, shape, base + offset, nbytes)

    def _check_overlap(self) -> None:
        ordered = sorted(self.tensors.values(), key=lambda tensor: tensor.start)
        for left, right in zip(ordered, ordered[1:], strict=False):
            if left.start + left.nbytes > right.start:
                raise ModelError(f"tensors {left.name!r} and {right.name!r} overlap", path=self.path)

    def tensor(self, name: str) -> HostTensor:
        """The tensor as a view of the file. Raises KeyError for an unknown name."""
        info = self.tensors[name]
        rows = math.prod(info.shape[:-1])
        data = self._file.bytes[info.start : info.start + info.nbytes].reshape(rows, info.nbytes // rows)
        return HostTensor(info.dtype, info.shape, data)

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        self._file.close()


class _Cursor:
    """Reads forward through a header. Reading past the end raises struct.error or OverflowError, answered in GgufFile."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._data = file.view
        self.position = 0

    def u32(self) -> int:
        self.position += 4
        return int(_U32.unpack_from(self._data, self.position - 4)[0])

    def u64(self) -> int:
        self.position += 8
        return int(_U64.unpack_from(self._data, self.position - 8)[0])

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.position:
            raise struct.error("past the end")
        self.position += count
        return bytes(self._data[self.position - count : self.position])

    def text(self, what: str) -> str:
        raw = self.take(self.u64())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{what} at byte {self.position - len(raw)} is not UTF-8: {error.reason}", path=self._file.path) from error

    def name(self, what: str) -> str:
        name = self.text(what)
        if not 1 <= len(name) <= _MAX_NAME:
            raise ModelError(f"a {what} before byte {self.position} has {len(name)} characters, 1 to {_MAX_NAME} are possible", path=self._file.path)
        return name

    def value(self, key: str, kind: int, depth: int) -> Any:
        """One value of the given type; string arrays are lazy."""
        if kind in _SCALARS:
            letter = "<" + _SCALARS[kind]
            (value,) = struct.unpack(letter, self.take(struct.calcsize(letter)))
            return bool(value) if kind == _BOOL else value
        if kind == _STRING:
            return self.text(f"metadata {key!r}")
        if kind != _ARRAY or depth >= _MAX_NESTING:
            raise ModelError(f"metadata {key!r} has the unknown value type {kind}", path=self._file.path)
        return self._array(key, depth)

    def _array(self, key: str, depth: int) -> Any:
        kind, count = self.u32(), self.u64()
        left = len(self._data) - self.position
        letter = _SCALARS.get(kind, "B")
        least = 8 if kind == _STRING else 12 if kind == _ARRAY else struct.calcsize("<" + letter)
        if count > left // least:
            raise ModelError(f"metadata {key!r} declares {count} items, more than the {left} bytes left in the file can hold", path=self._file.path)
        if kind == _STRING:
            start = self.position
            self._skip_strings(count)
            return StringArray(self._file.path, key, count, self._data[start : self.position])
        if kind == _ARRAY:
            return [self.value(key, _ARRAY, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise ModelError(f"metadata {key!r} has the unknown item type {kind}", path=self._file.path)
        raw = self.take(count * least)
        return [value != 0 for value in raw] if kind == _BOOL else memoryview(raw).cast(letter)  # hosts are little endian, as the files

    def _skip_strings(self, count: int) -> None:
        # 49k tokens and as many merges: this loop is most of the time of reading a header, so it checks the end once, after it
        data, position, read = self._data, self.position, _U64.unpack_from
        for _ in range(count):
            position += 8 + read(data, position)[0]
        if position > len(data):
            raise struct.error("past the end")
        self.position = position

"""Records calls of the native library, with what they read and wrote, for csrc/replay/replay.cpp: the kernel tests for other machines.

Recorded at the portable level, whose results the tests compare with numpy; the replay compares its level with these. Which memory a call
reads and writes is in the tables below, by function and by struct. A buffer that a call left as it is found by the next call is not sent again.
"""

from __future__ import annotations

import ctypes as C
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmx_cpu import native

__all__ = ["Recorder"]

FLOATS, BYTES = 0, 1
Extents = dict[str, Callable[[Any], int]]
# Bytes behind each pointer of a struct. test structs are known by name: test modules define them.
STRUCTS: dict[str, Extents] = {
    "Tape": {"ops": lambda s: s.n_ops * C.sizeof(native.OpRecord), "values": lambda s: s.n_values * 16, "parts": lambda s: s.n_parts * 16},
    "StepArgs": {
        **dict.fromkeys(("slot", "q", "start"), lambda s: 4 * s.n),
        **{"tokens": lambda s: 4 * s.t, "head": lambda s: 4 * s.r, "samples": lambda s: 12 * s.s, "left": lambda s: 4 * s.n_left},
        "joined": lambda s: s.n_joined * C.sizeof(native.Joined),
        "n_new_blocks": lambda s: 4 if s.new_blocks else 0,
        "new_blocks": lambda s: 8 if s.new_blocks else 0,
    },
    "StepResult": {"count": lambda s: 256, "tokens": lambda s: 256, "status": lambda s: 64},
    "Joined": {"tokens": lambda s: 4 * s.n_tokens},
    "SamplingRowC": {
        **{"stop_ids": lambda s: 4 * s.n_stop, "bias_ids": lambda s: 4 * s.n_bias, "bias": lambda s: 4 * s.n_bias},
        **{"allowed_ids": lambda s: 4 * s.n_allowed, "bad_words": lambda s: 4 * s.n_bad},
    },
    "TestAttention": {
        **dict.fromkeys(("slot", "q", "start"), lambda s: 4 * s.n),
        **{name: lambda s, width=f"ld_{name}": 4 * _rows(s) * getattr(s, width) for name in ("query", "k", "v", "out")},
        **dict.fromkeys(("sinks", "alibi"), lambda s: 4 * s.q_heads),
        "table": lambda s: 4 * s.stride * (int(_ints(s.slot, s.n).max()) + 1),
        "pages": lambda s: s.block_bytes * (int(_ints(s.table, s.stride * (int(_ints(s.slot, s.n).max()) + 1)).max()) + 1),
    },
}
LEVEL_AT = {"TestAttention": 0}  # offset of the level in a struct
# Of each function's arguments: bytes behind a pointer, as a function of the arguments; "out": what is compared afterwards.
Sizes = dict[int, Callable[[list[Any]], int]]
FUNCTIONS: dict[str, tuple[Sizes, tuple[int, ...]]] = {
    "llmx_engine_weight": ({6: lambda a: a[4] * a[7]}, ()),
    "llmx_engine_vector": ({1: lambda a: 4 * a[2]}, ()),
    "llmx_engine_kv": ({1: lambda a: a[2] * C.sizeof(native.Group), 3: lambda a: a[4] * C.sizeof(native.StateRecord)}, ()),
    "llmx_test_linear": (
        {1: lambda a: 16 * a[2], 3: lambda a: 4 * a[4] * a[5], 6: lambda a: 4 * a[4] * a[7], 8: lambda a: 4 * a[4] * a[7], 10: lambda a: a[4]},
        (6,),
    ),
    "llmx_test_norm": ({**dict.fromkeys((4, 5), lambda a: 4 * a[11]), **dict.fromkeys((6, 7, 9), lambda a: 4 * a[10] * a[11])}, (9,)),
    "llmx_test_act": ({3: lambda a: 4 * a[5] * a[6] * (1 + a[2]), 4: lambda a: 4 * a[5] * a[6]}, (4,)),
    "llmx_test_unary": ({3: lambda a: 4 * a[5], 4: lambda a: 4 * a[5]}, (4,)),
    "llmx_test_softmax": ({1: lambda a: 4 * a[3] * a[4], 2: lambda a: 4 * a[3] * a[4]}, (2,)),
    "llmx_test_rope": (
        {1: lambda a: 4 * a[2] * (int(_ints(a[4], a[7]).max()) + 1), 4: lambda a: 4 * a[7], **dict.fromkeys((5, 6), lambda a: 4 * a[7] * a[8] * a[9])},
        (6,),
    ),
    "llmx_test_slots_open": ({2: lambda a: 4 * a[1]}, ()),
}
PLAIN = ("llmx_engine_new", "llmx_engine_free", "llmx_engine_fine_positions", "llmx_test_slots_close", "llmx_test_slots_append")
WITH_STRUCTS = ("llmx_engine_tape", "llmx_engine_step", "llmx_test_kv_write", "llmx_test_attention", "llmx_test_slots_apply", "llmx_test_sample")
HANDLES = ("llmx_engine_new", "llmx_test_slots_open")
LEVELLED = ("llmx_engine_new", *(f"llmx_test_{n}" for n in ("norm", "act", "unary", "softmax", "rope", "sample")))  # argument 0 is the level


def _ints(address: int, n: int) -> np.ndarray:
    return np.frombuffer(C.string_at(address, 4 * n), np.int32)


def _rows(attention: Any) -> int:
    return int(_ints(attention.q, attention.n).sum())


def _sample_extents(vocab: int) -> Extents:
    return {
        **{"logits": lambda s: 4 * vocab, "mask": lambda s: (vocab + 31) // 32 * 4, "ids": lambda s: 4 * s.n_ids},
        **{"lp_ids": lambda s: 4 * s.lp_width, "lp": lambda s: 4 * s.lp_width, "rank": lambda s: 4},
    }


class Recorder:
    """Stands in for the library: passes every call on and writes the known ones down. tolerance: of a replay's floats, relative to the greatest."""

    def __init__(self, path: Path, tolerance: float = 2e-5) -> None:
        self._library, self._file, self._tolerance = native.library(), path.open("wb"), tolerance
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # (address, size) -> (buffer, hash of what it holds)
        self._buffers = self._calls = 0
        self._handles: dict[int, int] = {}  # pointer that a call gave -> number of the call
        self._columns: dict[tuple[int, int], int] = {}  # (engine, weight) -> columns
        self._sample: Extents = {}

    def close(self) -> None:
        """Everything is written."""
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        recorded = name in FUNCTIONS or name in PLAIN or name in WITH_STRUCTS or name == "llmx_test_unpack_row"
        return _Function(self, name, function) if recorded else function

    def _words(self, *words: int) -> None:
        self._file.write(struct.pack(f"<{len(words)}Q", *(w & (2**64 - 1) for w in words)))

    def print_ints(self, address: int, size: int, count: int) -> None:
        """The replay prints the first `count` int32 of a buffer that a call has used."""
        self._words(4, self._known[address, size][0], count)

    def _memory(self, address: int, size: int, pointers: list[tuple[int, int]] | None = None, level: int = -1) -> int:
        """The buffer that stands for this memory."""
        data = C.string_at(address, size)
        key, now = (address, size), hash(data)
        if pointers is None and self._known.get(key, (0, None))[1] == now:
            return self._known[key][0]
        self._words(1, size)
        self._file.write(data)
        self._words(len(pointers or ()), *(word for pair in pointers or () for word in pair), level)
        self._known[key] = (self._buffers, now)
        self._buffers += 1
        return self._buffers - 1

    def _struct(self, address: int, kind: Any, count: int = 1) -> int:
        """The buffer for structs that lie one behind the other."""
        pointers: list[tuple[int, int]] = []
        for i in range(count):
            one = kind.from_address(address + i * C.sizeof(kind))
            self._fields(one, i * C.sizeof(kind), pointers)
        return self._memory(address, C.sizeof(kind) * count, pointers, LEVEL_AT.get(kind.__name__, -1))

    def _fields(self, one: Any, base: int, pointers: list[tuple[int, int]]) -> None:
        for name, kind in one._fields_:
            offset = base + getattr(type(one), name).offset
            if isinstance(kind, type) and issubclass(kind, C.Structure):
                self._fields(getattr(one, name), offset, pointers)
                continue
            if kind not in (C.c_void_p, C.c_char_p):
                continue
            address = C.c_void_p.from_address(C.addressof(one) + getattr(type(one), name).offset).value
            size = self.sizes(one).get(name, lambda _: 0)(one) if address else 0
            if not address:
                continue
            if name == "new_blocks":
                pointers.append((offset, self._blocks(address, one)))
            elif name == "joined":
                pointers.append((offset, self._struct(address, native.Joined, one.n_joined) if one.n_joined else self._memory(address, 8)))
            else:
                pointers.append((offset, self._memory(address, size)))

    def sizes(self, one: Any) -> Extents:
        """Extents of a struct's pointers."""
        return {**STRUCTS.get(type(one).__name__, {}), **(self._sample if type(one).__name__ == "TestSample" else {})}

    def _blocks(self, address: int, step: Any) -> int:
        """One group's rows of new blocks."""
        rows = C.c_void_p.from_address(address).value
        count = int(_ints(step.n_new_blocks, 1)[0])
        inner = self._memory(rows, 12 * count) if rows else self._memory(address, 0)
        return self._memory(address, 8, [(0, inner)])

    def _argument(self, name: str, index: int, value: Any, values: list[Any], original: Any) -> tuple[int, int]:
        if isinstance(value, float):
            return 1, struct.unpack("<I", struct.pack("<f", value))[0]
        if index == 0 and name in LEVELLED:
            return 4, 0
        if value in self._handles and index == (1 if name == "llmx_test_sample" else 0):
            return 3, self._handles[value]
        if value is None:
            return 0, 0
        if isinstance(original, C.Array):
            structs = issubclass(original._type_, C.Structure)
            return 2, self._struct(value, original._type_, len(original)) if structs else self._memory(value, C.sizeof(original))
        inner = getattr(original, "_obj", None)
        if isinstance(inner, C.Structure):
            return 2, self._struct(value, type(inner))
        if inner is not None:
            return 2, self._memory(value, C.sizeof(inner))
        if name == "llmx_engine_tape" and index == 1:
            return 2, self._struct(value, native.Tape)
        if name == "llmx_engine_step" and index in (1, 2):
            return 2, self._struct(value, native.StepArgs if index == 1 else native.StepResult)
        if name == "llmx_test_unpack_row" and index == 3:
            return 2, self._memory(value, 4 * self._columns[values[0], values[1]])
        size = FUNCTIONS.get(name, ({}, ()))[0].get(index)
        return (0, int(value)) if size is None else (2, self._memory(value, size(values)))

    def call(self, name: str, function: Any, args: tuple[Any, ...]) -> Any:
        """Write a call down, make it, and write down what it gave."""
        values = [_plain(a) for a in args]
        if name == "llmx_test_sample":
            self._sample = _sample_extents(values[4])
        words = [self._argument(name, i, v, values, args[i]) for i, v in enumerate(values)]
        self._words(2, len(name))
        self._file.write(name.encode())
        self._words(len(words), *(w for pair in words for w in pair))
        result = function(*args)
        failed = isinstance(result, int) and result < 0
        self._words(int(name not in HANDLES and isinstance(result, int) and not failed and name not in ("llmx_test_kv_write", "llmx_test_sample")))
        if name in HANDLES and result:
            self._handles[int(getattr(result, "value", result))] = self._calls
        if name == "llmx_engine_weight" and not failed:
            self._columns[values[0], result] = values[5]
        self._calls += 1
        if not failed:
            self._results(name, values, args, words)
        return result

    def _compare(self, buffer: int, offset: int, kind: int, address: int, size: int) -> None:
        tolerance = struct.unpack("<I", struct.pack("<f", self._tolerance))[0]
        self._words(3, buffer, offset, kind, size, tolerance)
        self._file.write(C.string_at(address, size))

    def _results(self, name: str, values: list[Any], args: tuple[Any, ...], words: list[tuple[int, int]]) -> None:
        sizes, outs = FUNCTIONS.get(name, ({}, ()))
        for index in outs:
            self._output(words[index][1], FLOATS, values[index], sizes[index](values))
        if name == "llmx_test_unpack_row":
            self._output(words[3][1], FLOATS, values[3], 4 * self._columns[values[0], values[1]])
        if name in ("llmx_test_attention", "llmx_test_kv_write"):
            one = args[0]._obj
            out, pages = ((getattr(one, f), STRUCTS["TestAttention"][f](one)) for f in ("out", "pages"))
            if name == "llmx_test_attention":
                self._output(self._known[out][0], FLOATS, *out)
            self._known[pages] = (self._known[pages][0], hash(C.string_at(*pages)))
        if name == "llmx_test_sample":
            kind = args[2]._type_
            for i in range(values[3]):
                for field in ("token", "status"):
                    at = i * C.sizeof(kind) + getattr(kind, field).offset
                    self._compare(words[2][1], at, BYTES, values[2] + at, 4)

    def _output(self, buffer: int, kind: int, address: int, size: int) -> None:
        self._compare(buffer, 0, kind, address, size)
        self._known[address, size] = (buffer, hash(C.string_at(address, size)))


class _Function:
    """One recorded function; result and argument types are those of the library's."""

    def __init__(self, recorder: Recorder, name: str, function: Any) -> None:
        self.__dict__.update(_recorder=recorder, _name=name, _function=function)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._function, name, value)

    def __call__(self, *args: Any) -> Any:
        return self._recorder.call(self._name, self._function, args)


def _plain(value: Any) -> Any:
    """An argument as a number, an address, a float or None."""
    if isinstance(value, (C.Array, C.Structure)):
        return C.addressof(value)
    inner = getattr(value, "_obj", None)
    if inner is not None:
        return C.addressof(inner)
    return value.value if isinstance(value, C._SimpleCData) else value

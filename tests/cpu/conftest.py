"""The native library through its C entry points for tests (csrc/capi_*.cpp), and a slot table driven by real Step arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import c_char_p, c_float, c_int, c_int32, c_uint64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path

import llmx_cpu
import numpy as np
import pytest
from llmx.batch import Joined
from llmx.sample.params_rows import SamplingRow


class RowArgs(ctypes.Structure):
    """LlmxSamplingRow of csrc/step.h."""

    _fields_ = [
        *[(name, c_float) for name in ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")],
        *[("top_k", c_int32), ("min_tokens", c_int32), ("seed", c_uint64)],
        *[(name, c_void_p) for name in ("stop_ids", "bias_ids", "bias", "allowed_ids")],
        *[(name, c_int32) for name in ("n_stop", "n_bias", "n_allowed", "pad")],
    ]


class JoinedArgs(ctypes.Structure):
    """LlmxJoined of csrc/step.h."""

    _fields_ = [("tokens", c_void_p), *[(name, c_int32) for name in ("n_tokens", "slot", "prompt_len", "fork_of")], ("row", RowArgs)]


class StepArgs(ctypes.Structure):
    """LlmxStepArgs of csrc/step.h."""

    _fields_ = [
        *[(name, c_int32) for name in ("n", "t", "r", "s", "c", "n_joined", "n_left", "n_kv_ops")],
        *[(name, c_void_p) for name in ("slot", "q", "start", "tokens", "head", "samples", "score", "score_top", "joined", "left")],
        *[(name, c_void_p) for name in ("new_blocks", "n_new_blocks", "kv_ops", "want_top", "want_ids", "want_ids_offset")],
        *[(name, c_void_p) for name in ("mask", "mask_open", "mask_drop")],
    ]


@dataclass
class SlotState:
    """What the table holds for one slot."""

    used: bool
    prompt_len: int
    last_token: int
    penalties: bool
    history: list[int] = field(default_factory=list)


class SlotTable:
    """llmx::SlotTable."""

    def __init__(self, library: ctypes.CDLL, max_requests: int, max_blocks: tuple[int, ...]) -> None:
        self._library, self._max_requests, self._max_blocks = library, max_requests, max_blocks
        library.llmx_test_slots_open.restype = c_void_p
        library.llmx_test_slots_apply.restype = c_char_p
        library.llmx_test_slots_blocks.restype = ctypes.POINTER(c_int32)
        self.pointer = c_void_p(library.llmx_test_slots_open(max_requests, len(max_blocks), (c_int * len(max_blocks))(*max_blocks)))

    def close(self) -> None:
        """Frees the table."""
        self._library.llmx_test_slots_close(self.pointer)

    def apply(self, joined: tuple[Joined, ...] = (), left: tuple[int, ...] = (), new_blocks: tuple[list[tuple[int, int, int]], ...] = ()) -> str:
        """Applies the changes of one Step; returns the error, or an empty string."""
        keep: list[np.ndarray] = []

        def pointer(values: np.ndarray | None, dtype: type = np.int32) -> int | None:
            if values is None:
                return None
            keep.append(np.ascontiguousarray(values, dtype=dtype))
            return keep[-1].ctypes.data

        ordered = sorted(joined, key=lambda j: j.fork_of >= 0)  # forks last, as native.py has it
        entries = (JoinedArgs * max(1, len(ordered)))()
        for entry, j in zip(entries, ordered, strict=False):
            row = j.row
            entry.tokens, entry.n_tokens, entry.slot, entry.prompt_len, entry.fork_of = pointer(j.tokens), len(j.tokens), j.slot, j.prompt_len, j.fork_of
            allowed = row.allowed_ids
            entry.row = RowArgs(
                row.temperature, row.top_p, row.min_p, row.presence_penalty, row.frequency_penalty, row.repetition_penalty, row.top_k, row.min_tokens, row.seed,
                pointer(row.stop_ids), pointer(row.bias_ids), pointer(row.bias, np.float32), pointer(allowed),
                len(row.stop_ids), len(row.bias_ids), 0 if allowed is None else len(allowed), 0,
            )  # fmt: skip
        groups = [np.array(rows, dtype=np.int32).reshape(-1, 3) for rows in new_blocks] or [np.empty((0, 3), np.int32) for _ in self._max_blocks]
        block_rows = (c_void_p * len(groups))(*[pointer(rows) for rows in groups])
        counts = np.array([len(rows) for rows in groups], dtype=np.int32)
        step = StepArgs(n_joined=len(ordered), n_left=len(left), joined=ctypes.addressof(entries), left=pointer(np.array(left, dtype=np.int32)))
        step.new_blocks, step.n_new_blocks = ctypes.addressof(block_rows), pointer(counts)
        return bytes(self._library.llmx_test_slots_apply(self.pointer, ctypes.byref(step))).decode()

    def join(self, slot: int, row: SamplingRow, tokens: np.ndarray, prompt_len: int) -> None:
        """One request takes a slot."""
        error = self.apply(joined=(Joined(slot, tokens, prompt_len, row),))
        assert error == "", error

    def append(self, slot: int, token: int) -> None:
        """A token was drawn."""
        self._library.llmx_test_slots_append(self.pointer, slot, token)

    def read(self, slot: int) -> SlotState:
        """The slot as it stands."""
        state, history = (c_int32 * 4)(), (c_int32 * 8192)()
        length = self._library.llmx_test_slots_read(self.pointer, slot, state, history, 8192)
        return SlotState(bool(state[0]), state[1], state[2], bool(state[3]), list(history[:length]))

    def count(self, slot: int, token: int) -> int:
        """Times generated; -1 when unknown."""
        return int(self._library.llmx_test_slots_count(self.pointer, slot, token))

    def blocks(self, group: int, slot: int) -> list[int]:
        """One block-table row."""
        width = self._max_blocks[group]
        rows = self._library.llmx_test_slots_blocks(self.pointer, group)
        return list(rows[slot * width : (slot + 1) * width])


@pytest.fixture(scope="session")
def native_library() -> ctypes.CDLL:
    """The library as it is packaged."""
    return ctypes.CDLL(str(Path(llmx_cpu.__file__).parent / "_native.so"))


@pytest.fixture(scope="session")
def isa_levels(native_library: ctypes.CDLL) -> tuple[int, ...]:
    """The levels that this machine can run, portable first."""
    native_library.llmx_test_isa_best.restype = c_int
    return tuple(range(int(native_library.llmx_test_isa_best()) + 1))


@pytest.fixture
def open_slots(native_library: ctypes.CDLL) -> Iterator[Callable[..., SlotTable]]:
    """Makes slot tables; they are closed after the test."""
    tables: list[SlotTable] = []

    def make(max_requests: int = 4, max_blocks: tuple[int, ...] = (8,)) -> SlotTable:
        tables.append(SlotTable(native_library, max_requests, max_blocks))
        return tables[-1]

    yield make
    for table in tables:
        table.close()

"""A native slot table by itself (llmx::SlotTable), driven by the same step arguments as the executor."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_void_p
from dataclasses import dataclass, field

import numpy as np

from llmx.batch import Joined
from llmx.sample.params_rows import SamplingRow
from llmx_cpu.native import Joined as JoinedArgs
from llmx_cpu.native import SamplingRowC, StepArgs, library


@dataclass
class SlotState:
    """What the table holds for one slot."""

    used: bool
    prompt_len: int
    last_token: int
    penalties: bool
    history: list[int] = field(default_factory=list)


def slot_library() -> ctypes.CDLL:
    """The packaged library with result types of the slot functions set."""
    lib = library()
    lib.llmx_test_slots_open.restype = c_void_p
    lib.llmx_test_slots_apply.restype = c_char_p
    lib.llmx_test_slots_blocks.restype = ctypes.POINTER(c_int32)
    return lib


class SlotTable:
    """llmx::SlotTable."""

    def __init__(self, max_requests: int, max_blocks: tuple[int, ...]) -> None:
        self._library, self._max_blocks = slot_library(), max_blocks
        self.pointer = c_void_p(self._library.llmx_test_slots_open(max_requests, len(max_blocks), (c_int * len(max_blocks))(*max_blocks)))

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

        def row_args(row: SamplingRow) -> ctypes.Structure:
            allowed = row.allowed_ids
            return SamplingRowC(
                row.temperature, row.top_p, row.min_p, row.presence_penalty, row.frequency_penalty, row.repetition_penalty, row.top_k, row.min_tokens, row.seed,
                pointer(row.stop_ids), pointer(row.bias_ids), pointer(row.bias, np.float32), pointer(allowed), pointer(row.bad_words),
                len(row.stop_ids), len(row.bias_ids), 0 if allowed is None else len(allowed), len(row.bad_words),
            )  # fmt: skip

        ordered = sorted(joined, key=lambda j: j.fork_of >= 0)  # forks last
        entries = (JoinedArgs * max(1, len(ordered)))()
        for i, j in enumerate(ordered):
            place = {"slot": j.slot, "prompt_len": j.prompt_len, "fork_of": j.fork_of, "lora": j.lora_slot}
            entries[i] = JoinedArgs(tokens=pointer(j.tokens), n_tokens=len(j.tokens), row=row_args(j.row), **place)
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

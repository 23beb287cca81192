"""Slots: what an executor in Python keeps of each running request - token history, sampling row, block tables - changed only by Steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmx.batch import Joined, Step
from llmx.errors import PlatformError
from llmx.kv.spec import KVPlan
from llmx.record import record
from llmx.sample.params_rows import SamplingRow

__all__ = ["MAX_DRAFTS", "RequestRows", "Slot", "Slots"]

MAX_DRAFTS = 16  # per sample: a recurrent State has a place for each, beside the accepted one


@record
class RequestRows:
    """The rows of one request: rows[first : first + q] are its tokens at positions start .. start + q - 1.

    drafts: how many of them, at the end, are guesses. tables: per KV group the request's block table, i32.
    """

    slot: int
    first: int
    q: int
    start: int
    drafts: int
    prompt_len: int
    tables: tuple[np.ndarray, ...]
    lora: int = -1  # slot of its adapter; -1: none

    @property
    def end(self) -> int:
        """Tokens of the request once these rows are computed."""
        return self.start + self.q

    @property
    def span(self) -> slice:
        """Where its rows are among the step's."""
        return slice(self.first, self.first + self.q)


@dataclass(slots=True)
class Slot:
    """One request. history: prompt, then everything produced."""

    history: list[int]
    prompt_len: int
    row: SamplingRow
    lora: int = -1


class Slots:
    """All slots, and per KV group their block tables i32 [slots, blocks]; -1: never given."""

    def __init__(self, plan: KVPlan) -> None:
        self.used: dict[int, Slot] = {}
        self._count = plan.max_requests
        lengths = [1 + MAX_DRAFTS if g.need.spec.kind == "state" else -(-plan.max_model_len // g.need.block_tokens) + 1 for g in plan.groups]
        self.tables = [np.full((plan.max_requests, length), -1, np.int32) for length in lengths]

    def at(self, slot: int) -> Slot:
        """Raises PlatformError when nobody holds the slot."""
        if slot not in self.used:
            raise PlatformError(f"a step names slot {slot}, which no request holds")
        return self.used[slot]

    def change(self, step: Step) -> None:
        """left, joined that are not forks, new_blocks, forks: in this order."""
        for slot in step.left.tolist():
            self.at(slot)
            del self.used[slot]
            for table in self.tables:
                table[slot] = -1
        for joined in step.joined:
            if joined.fork_of < 0:
                self._join(joined, joined.tokens.tolist())
        for table, rows in zip(self.tables, step.new_blocks, strict=False):
            table[rows[:, 0], rows[:, 1]] = rows[:, 2]
        for joined in step.joined:
            if joined.fork_of >= 0:
                self._join(joined, list(self.at(joined.fork_of).history))
                for table in self.tables:
                    table[joined.slot] = table[joined.fork_of]

    def _join(self, joined: Joined, history: list[int]) -> None:
        if joined.slot in self.used or not 0 <= joined.slot < self._count:
            raise PlatformError(f"a request joins slot {joined.slot}, which is in use or outside 0..{self._count - 1}")
        self.used[joined.slot] = Slot(history, joined.prompt_len, joined.row, joined.lora_slot)

    def requests(self, step: Step) -> tuple[RequestRows, ...]:
        """Whose rows the step has, in order."""
        drafts = {int(slot): int(rows) - 1 for slot, _, rows in step.samples}
        first, result = 0, []
        for slot, q, start in zip(step.slot.tolist(), step.q.tolist(), step.start.tolist(), strict=True):
            tables = tuple(table[slot] for table in self.tables)
            kept = self.at(slot)
            result.append(RequestRows(slot, first, q, start, drafts.get(slot, 0), kept.prompt_len, tables, kept.lora))
            first += q
        return tuple(result)

    def tokens(self, step: Step, vocab: int) -> np.ndarray:
        """i64 [T]: the step's tokens, -1 replaced by what was produced last for the slot. Raises PlatformError for an id outside 0..vocab - 1."""
        tokens = step.tokens.astype(np.int64)
        owners = np.repeat(step.slot, step.q)
        for row in np.flatnonzero(tokens == -1).tolist():
            tokens[row] = self.at(int(owners[row])).history[-1]
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab:
            raise PlatformError(f"step {step.seq} brings the token ids {tokens.min()}..{tokens.max()}, the vocabulary is 0..{vocab - 1}")
        return tokens

"""Drawing: what the samples and score spans of one step come to. Rows arrive in blocks; llmx.sample.reference says what a row means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from llmx.batch import PromptLogprobs, Status, Step, StepOutput, Want
from llmx.executor.base import Late
from llmx.executor.drawn import write_drawn
from llmx.executor.slots import RequestRows, Slot, Slots
from llmx.record import record
from llmx.sample.reference import Sampled, logprobs, sample

__all__ = ["Drawing", "SampleRow", "Sampled"]


@record
class SampleRow:
    """One row that a token is drawn from. before: guesses of its sample that stand between its slot's history and it; dropped: nothing is drawn."""

    head_row: int
    slot: Slot
    before: list[int]
    mask: np.ndarray | None  # u32 [ceil(V / 32)]
    dropped: bool


class Drawing:
    """Takes logits of head rows in ascending order and fills one StepOutput.

    A sample's rows are consecutive head rows, so each is drawn when all rows before it are. It ends at the first draft that
    the target did not draw, at a row that cannot be sampled, or at a row that was dropped.
    """

    def __init__(self, step: Step, requests: tuple[RequestRows, ...], slots: Slots, late: Late) -> None:
        self._step, self._late = step, late
        self._owners = [slots.at(slot) for slot in step.samples[:, 0].tolist()]
        self._scored = [slots.at(slot) for slot in step.score[:, 0].tolist()]
        self._requests = {one.slot: one for one in requests}
        self._index = {one.slot: at for at, one in enumerate(requests)}
        self._open = [True] * len(step.samples)
        self._sample_rows = list(_by_row(step.samples))
        self._rows: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # head row -> (sample, row in it, row among all samples')
        for number, (row, sample_index, at) in enumerate(self._sample_rows):
            self._rows[row].append((sample_index, at, number))
        self._spans: dict[int, list[tuple[int, int]]] = defaultdict(list)  # head row -> (span, row in it)
        for row, span, at in _by_row(step.score):
            self._spans[row].append((span, at))
        self.out = _empty(step)

    def rows(self) -> list[SampleRow]:
        """What an executor must know to draw all rows at once, in the order of the samples' rows."""
        found = []
        for number, (row, index, at) in enumerate(self._sample_rows):
            dropped = self._late.drop is not None and bool(self._late.drop[number])
            found.append(SampleRow(row, self._owners[index], self._drafts(index)[:at], self._mask(number), dropped))
        return found

    def raw_rows(self) -> list[int]:
        """Head rows, ascending, whose logits `block` must see even when tokens are drawn elsewhere: those that are scored, or give logprobs."""
        wanted = {row for row, index, _ in self._sample_rows if self._step.want and self._step.want[index] is not None}
        return sorted(wanted | self._spans.keys())

    def host_rows(self) -> np.ndarray:
        """i64 [rows]: the head row of every row of every sample, in order: what Late.host_logits gets."""
        return np.array([row for row, _, _ in self._sample_rows], np.int64)

    def block(
        self, first: int, logits: Sequence[np.ndarray] | np.ndarray, processed: np.ndarray | None = None, drawn: Sequence[Sampled] | None = None
    ) -> None:
        """Head rows first .. first + len(logits) - 1, float32 [rows, V]. processed: of all sample rows what host_logits gave.

        drawn: of all sample rows, as `rows` has them, what the device drew; then logits may be empty but for those of `raw_rows`.
        """
        for row, raw in enumerate(logits, start=first):
            for span, at in self._spans.get(row, ()):
                self._score(span, at, row, raw)
            for sample_index, at, number in self._rows.get(row, ()):
                self._draw(sample_index, at, number, raw if processed is None else processed[number], None if drawn is None else drawn[number])

    def _draw(self, index: int, at: int, number: int, raw: np.ndarray, drawn: Sampled | None) -> None:
        late, owner, out = self._late, self._owners[index], self.out
        if not self._open[index] or (late.drop is not None and late.drop[number]):
            self._open[index] = False
            return
        drawn = drawn or sample(raw, owner.row, np.array(owner.history, np.int32), owner.prompt_len, self._mask(number))
        if drawn.status != Status.OK:
            self._open[index] = False
            if at == 0:  # behind a draft the next step meets it again, after the tokens before it went out
                self._fail(int(self._step.samples[index, 0]), drawn.status)
            return
        want = self._step.want[index] if self._step.want else None
        write_drawn(out, index, at, drawn.token, raw, want)
        owner.history.append(drawn.token)
        drafts = self._drafts(index)
        self._open[index] = at < len(drafts) and drafts[at] == drawn.token

    def _mask(self, number: int) -> np.ndarray | None:
        """The mask of a sample row; None: every token may be drawn."""
        late = self._late
        masked = late.mask is not None and not (late.open is not None and late.open[number])
        return np.ascontiguousarray(late.mask[number]) if late.mask is not None and masked else None

    def _drafts(self, index: int) -> list[int]:
        """The guesses that a sample verifies: the last rows of its request."""
        slot, _, rows = self._step.samples[index].tolist()
        if rows == 1:
            return []
        span = self._requests[slot].span
        return list(map(int, self._step.tokens[span][-(rows - 1) :]))

    def _fail(self, slot: int, status: Status) -> None:
        if slot in self._index:  # a fork has no rows in the step in which it joins
            self.out.status[self._index[slot]] = status

    def _score(self, span: int, at: int, row: int, raw: np.ndarray) -> None:
        """Logprobs of the token that really follows a row of a prompt."""
        slot, to = int(self._step.score[span, 0]), self.out.prompt_lp[span]
        if np.isnan(raw).any() or (raw == np.inf).any():
            self._fail(slot, Status.NAN)
            return
        one, kept = self._requests[slot], self._scored[span]
        follows = _next_token(kept, one.start + int(self._step.head[row]) - one.first)
        entry = logprobs(raw, follows, int(self._step.score_top[span]))
        to.ids[at, : len(entry.ids)], to.lp[at, : len(entry.lp)], to.rank[at] = entry.ids, entry.lp, entry.rank


def _next_token(kept: Slot, position: int) -> int:
    return kept.history[position + 1]


def _by_row(table: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(head row, index in the table, row in its span) of every row of `samples` or `score`."""
    for index, (_, first, rows) in enumerate(table.tolist()):
        for at in range(rows):
            yield first + at, index, at


def _empty(step: Step) -> StepOutput:
    """The output before anything is drawn: counts 0, tokens -1, logprobs -inf."""
    samples = len(step.samples)
    wide = int(step.samples[:, 2].max()) if samples else 1
    out = StepOutput(step.seq, np.zeros(samples, np.int32), np.full((samples, wide), -1, np.int32), np.zeros(step.num_requests, np.uint8))
    columns = max((_columns(want) for want in step.want if want is not None), default=0)
    if columns:
        out.lp_ids = np.full((samples, wide, columns), -1, np.int32)
        out.lp = np.full((samples, wide, columns), -np.inf, np.float32)
        out.rank = np.zeros((samples, wide), np.int32)
    for (_, _, rows), top in zip(step.score.tolist(), step.score_top.tolist(), strict=True):
        shape = (rows, 1 + top)
        out.prompt_lp.append(PromptLogprobs(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32), np.zeros(rows, np.int32)))
    return out


def _columns(want: Want) -> int:
    return 1 + want.top_logprobs + (0 if want.ids is None else len(want.ids))

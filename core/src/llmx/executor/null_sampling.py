"""Sampling of the null executor: logits from a hash, drawn by `llmx.sample.reference`, so every option has its real effect."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from llmx.batch import PromptLogprobs, Status, Step, StepOutput, Want
from llmx.executor.base import Late
from llmx.executor.drawn import write_drawn
from llmx.executor.null_pages import history_hash
from llmx.record import record
from llmx.sample.params_rows import SamplingRow
from llmx.sample.reference import logprobs, sample

__all__ = ["NullModel", "SlotView", "sample_step", "score_step"]


@dataclass(slots=True)
class SlotView:
    """A request as sampling sees it. rows: the tokens of its rows in the step at hand."""

    history: list[int]
    prompt_len: int
    row: SamplingRow
    rows: list[int] = field(default_factory=list)


@record
class NullModel:
    """logits(history): noise from a hash of the history with one clear favourite. nan_tokens: ids after which a row fails."""

    vocab_size: int
    nan_tokens: frozenset[int] = frozenset()

    def favourite(self, history: list[int]) -> int:
        """The most likely next token."""
        return (history_hash(history) >> 13) % self.vocab_size

    def logits(self, history: list[int], prompt_len: int) -> np.ndarray:
        """float32 [V]. prompt_len: tokens of the history that are the prompt; this model does not care."""
        noise = np.random.default_rng(history_hash(history)).standard_normal(self.vocab_size, dtype=np.float32)
        noise[self.favourite(history)] = np.float32(6.0)
        return noise


def sample_step(model: NullModel, step: Step, views: list[SlotView], dead: set[int], late: Late) -> StepOutput:
    """Draw for every sample of a step, verify drafts, append to the histories."""
    samples, kmax = step.samples.tolist(), int(step.samples[:, 2].max()) if len(step.samples) else 1
    out = StepOutput(step.seq, np.zeros(len(samples), np.int32), np.full((len(samples), kmax), -1, np.int32), np.zeros(step.num_requests, np.uint8))
    wants = step.want or [None] * len(samples)
    width = max((1 + want.top_logprobs + (0 if want.ids is None else len(want.ids)) for want in wants if want), default=0)
    if width:
        out.lp_ids = np.full((len(samples), kmax, width), -1, np.int32)
        out.lp = np.full((len(samples), kmax, width), -np.inf, np.float32)
        out.rank = np.zeros((len(samples), kmax), np.int32)
    if step.draft_k:
        out.drafts = np.full((len(samples), step.draft_k), -1, np.int32)
    row, processed = 0, None if late.host_logits is None else _host_logits(model, views, [rows for _, _, rows in samples], late)
    for index, (slot, _, rows) in enumerate(samples):
        if slot not in dead and not (late.drop is not None and late.drop[row]):
            _sample_one(model, views[index], rows, (out, index, wants[index]), late, row, processed)
            if out.drafts is not None:
                out.drafts[index] = _propose(model, views[index].history, step.draft_k)
        row += rows
    return out


def _host_logits(model: NullModel, views: list[SlotView], rows: list[int], late: Late) -> np.ndarray:
    """f32 [rows of all samples, V]: what the host makes of the raw logits, asked once. A draft's row is the one after the draft."""
    assert late.host_logits is not None
    histories = [(view, view.history + _drafts(view, n)[:at]) for view, n in zip(views, rows, strict=True) for at in range(n)]
    raw = [model.logits(history, view.prompt_len) for view, history in histories]
    return late.host_logits(np.stack(raw)) if raw else np.empty((0, model.vocab_size), np.float32)


def _drafts(view: SlotView, rows: int) -> list[int]:
    return view.rows[len(view.rows) - rows + 1 :] if rows > 1 else []


def _sample_one(
    model: NullModel, view: SlotView, rows: int, place: tuple[StepOutput, int, Want | None], late: Late, row: int, processed: np.ndarray | None
) -> None:
    out, index, want = place
    drafts = _drafts(view, rows)
    for at in range(rows):
        if view.history[-1] in model.nan_tokens:
            return
        raw = model.logits(view.history, view.prompt_len)
        if processed is not None:
            raw = processed[row + at]
        mask = late.mask[row + at] if late.mask is not None and not (late.open is not None and late.open[row + at]) else None
        drawn = sample(raw, view.row, np.array(view.history, np.int32), view.prompt_len, mask)
        if drawn.status != Status.OK:
            return
        write_drawn(out, index, at, drawn.token, raw, want)
        view.history.append(drawn.token)
        if at < len(drafts) and drafts[at] != drawn.token:
            return


def _propose(model: NullModel, history: list[int], k: int) -> list[int]:
    """Drafts that follow the favourite, every third one wrong on purpose."""
    sequence = list(history)
    for _ in range(k):
        guess = model.favourite(sequence)
        sequence.append((guess + 1) % model.vocab_size if history_hash(sequence) % 3 == 0 else guess)
    return sequence[len(history) :]


def score_step(model: NullModel, step: Step, views: list[SlotView]) -> list[PromptLogprobs]:
    """Logprobs of the known next tokens of every score span."""
    result = []
    starts = dict(zip(step.slot.tolist(), zip(step.start.tolist(), (np.cumsum(step.q) - step.q).tolist(), strict=True), strict=True))
    for (slot, head, rows), top, view in zip(step.score.tolist(), step.score_top.tolist(), views, strict=True):
        start, first_row = starts[slot]
        entries = []
        for at in range(rows):
            position = start + int(step.head[head + at]) - first_row
            entries.append(logprobs(model.logits(view.history[: position + 1], view.prompt_len), view.history[position + 1], top, None))
        ids, lp = np.stack([entry.ids for entry in entries]), np.stack([entry.lp for entry in entries])
        result.append(PromptLogprobs(ids, lp, np.array([entry.rank for entry in entries], np.int32)))
    return result

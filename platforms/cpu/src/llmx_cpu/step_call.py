"""StepCall: Steps as the structs of csrc/step.h, and the arrays of their results."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np

from llmx.executor import Joined, Late, PromptLogprobs, SamplingRow, Step, StepOutput
from llmx_cpu.native import Joined as JoinedC
from llmx_cpu.native import SamplingRowC, StepArgs, StepResult

__all__ = ["StepCall"]


class StepCall:
    """Steps as arguments of the library, one after the other: `begin` takes a step, `output` gives its result.

    `args` and `result` are handed to the library. After a forward the caches hold weights, and every other function that a step calls
    comes from memory, 10 to 60 us each, however little it does: so inputs go over as bytes (a field of the struct keeps them alive), and
    results lie in arrays whose addresses are known. max_requests: samples that results have room for at first.
    """

    __slots__ = (
        *("_at_results", "_drawn", "_keep", "_places", "_plain", "_sampled", "_shape", "_status"),
        *("args", "lp", "lp_ids", "pooled", "rank", "result", "score", "started", "step"),
    )

    def __init__(self, max_requests: int) -> None:
        self._drawn, self._status = np.empty(2 * max_requests, np.int32), np.empty(max_requests, np.uint8)
        self._place(0, 0, 1)
        self._keep: list[Any] = []
        self.pooled = np.empty((0, 0), np.float32)  # the head rows of a Program without logits, written by the executor
        self._plain = False  # the structs hold only what every step sets
        self._sampled = b""  # the samples as bytes
        self.started = False  # its result has to be waited for
        self.step = Step(0)
        self.begin(self.step)

    def begin(self, step: Step) -> None:
        """Take a step; the result of the one before has been taken by `output`."""
        last, self.step = self.step, step
        if not self._plain:
            self._keep.clear()
            self.args: Any = StepArgs()
            self.result: Any = StepResult()
        self._rows(step, last)
        if step.joined or step.left.size:
            self._changes(step)
        self._blocks(step)
        self._outputs(step)
        if step.want:
            self._wants(step)
        if len(step.score):
            self._scores(step)
        self._plain = not self._keep and not step.late

    def _at(self, array: np.ndarray, dtype: Any = np.int32) -> int:
        """Address of the array as contiguous `dtype`, kept alive."""
        array = np.ascontiguousarray(array, dtype=dtype)
        self._keep.append(array)
        address: int = array.__array_interface__["data"][0]
        return address

    def _rows(self, step: Step, last: Step) -> None:
        """The rows. last: the step before; what a step has in common with it is in the structs already."""
        args = self.args
        args.start, args.tokens = step.start.tobytes(), step.tokens.tobytes()
        if self._plain and step.slot is last.slot and step.q is last.q and step.head is last.head and step.samples is last.samples:
            return
        self._sampled = step.samples.tobytes()
        args.n, args.t, args.r, args.s = len(step.slot), len(step.tokens), len(step.head), len(step.samples)
        args.slot, args.q, args.head, args.samples = step.slot.tobytes(), step.q.tobytes(), step.head.tobytes(), self._sampled
        if len(self._sampled) != 12 * len(step.samples) or step.tokens.itemsize != 4:
            raise TypeError(f"step {step.seq} has arrays of {step.samples.dtype} and {step.tokens.dtype}: the executor takes int32")

    def _changes(self, step: Step) -> None:
        joined = (JoinedC * max(1, len(step.joined)))()
        for to, one in zip(joined, step.joined, strict=False):
            self._join(to, one)
        self._keep.append(joined)
        self.args.n_joined, self.args.joined = len(step.joined), C.addressof(joined)
        self.args.n_left, self.args.left = len(step.left), self._at(step.left)

    def _join(self, to: Any, one: Joined) -> None:
        to.tokens, to.n_tokens, to.slot = self._at(one.tokens), len(one.tokens), one.slot
        to.lora = one.lora_slot
        to.prompt_len, to.fork_of = one.prompt_len, one.fork_of
        row: SamplingRow = one.row
        allowed = row.allowed_ids
        to.row = SamplingRowC(
            row.temperature, row.top_p, row.min_p, row.presence_penalty, row.frequency_penalty, row.repetition_penalty,
            row.top_k, row.min_tokens, row.seed,
            self._at(row.stop_ids), self._at(row.bias_ids), self._at(row.bias, np.float32), None if allowed is None else self._at(allowed),
            self._at(row.bad_words),
            len(row.stop_ids), len(row.bias_ids), 0 if allowed is None else len(allowed), len(row.bad_words),
        )  # fmt: skip

    def _blocks(self, step: Step) -> None:
        if any(len(rows) for rows in step.new_blocks):
            groups = len(step.new_blocks)
            rows = (C.c_void_p * groups)(*[self._at(rows) for rows in step.new_blocks])
            counts = (C.c_int32 * groups)(*[len(rows) for rows in step.new_blocks])
            self._keep += [rows, counts]
            self.args.new_blocks, self.args.n_new_blocks = C.addressof(rows), C.addressof(counts)
        if len(step.kv_ops):
            self.args.n_kv_ops, self.args.kv_ops = len(step.kv_ops), self._at(step.kv_ops)

    def _outputs(self, step: Step) -> None:
        width = max(self._sampled[8::12], default=1)  # the low bytes of column 2, which is 1 + drafts
        if (len(step.slot), len(step.samples), width) != self._shape:
            self._place(len(step.slot), len(step.samples), width)
        self.lp_ids: np.ndarray | None = None
        self.lp: np.ndarray | None = None
        self.rank: np.ndarray | None = None
        self.score: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        result = self.result
        result.kmax = width - 1
        result.count, result.tokens, result.status = self._at_results

    def _place(self, rows: int, samples: int, width: int) -> None:
        """Places for the results of a step of this shape; the library clears them."""
        self._shape = rows, samples, width
        size = samples * (1 + width)
        if size > self._drawn.size:
            self._drawn = np.empty(size, np.int32)
        if rows > self._status.size:
            self._status = np.empty(rows, np.uint8)
        self._places = self._drawn[:samples], self._drawn[samples:size].reshape(samples, width), self._status[:rows]
        at = int(self._drawn.ctypes.data)
        self._at_results = at, at + 4 * samples, int(self._status.ctypes.data)

    def _wants(self, step: Step) -> None:
        ids = [np.empty(0, np.int32) if want is None or want.ids is None else want.ids for want in step.want]
        top = [-1 if want is None else want.top_logprobs for want in step.want]
        width = max((1 + t + len(i) for t, i in zip(top, ids, strict=True) if t >= 0), default=0)
        if width == 0:
            return
        shape = self._shape[1:]
        lp_ids, lp, rank = np.full((*shape, width), -1, np.int32), np.full((*shape, width), -np.inf, np.float32), np.zeros(shape, np.int32)
        self.lp_ids, self.lp, self.rank = lp_ids, lp, rank
        args, result = self.args, self.result
        args.want_top = self._at(np.array(top, np.int32))
        args.want_ids = self._at(np.concatenate(ids))
        args.want_ids_offset = self._at(np.cumsum([0, *(len(i) for i in ids)]))
        result.lp_ids, result.lp, result.rank = self._at(lp_ids), self._at(lp, np.float32), self._at(rank)
        result.lp_width = width

    def _scores(self, step: Step) -> None:
        rows, width = int(step.score[:, 2].sum()), 1 + int(step.score_top.max())
        self.score = np.full((rows, width), -1, np.int32), np.full((rows, width), -np.inf, np.float32), np.zeros(rows, np.int32)
        args, result = self.args, self.result
        args.c, args.score, args.score_top = len(step.score), self._at(step.score), self._at(step.score_top)
        result.score_ids, result.score_lp = self._at(self.score[0]), self._at(self.score[1], np.float32)
        result.score_rank, result.score_width = self._at(self.score[2]), width

    def mask(self, late: Late) -> None:
        """Take the masks that a late step waited for."""
        if late.mask is not None:
            self.args.mask = self._at(late.mask, np.uint32)
        if late.open is not None:
            self.args.mask_open = self._at(late.open, np.uint8)
        if late.drop is not None:
            self.args.mask_drop = self._at(late.drop, np.uint8)

    def output(self) -> StepOutput:
        """What the library wrote."""
        prompt_lp = []
        if self.score is not None:
            ids, lp, rank = self.score
            at = 0
            for (_, _, rows), top in zip(self.step.score.tolist(), self.step.score_top.tolist(), strict=True):
                prompt_lp.append(PromptLogprobs(ids[at : at + rows, : 1 + top], lp[at : at + rows, : 1 + top], rank[at : at + rows]))
                at += rows
        count, tokens, status = self._places
        t = self.result.t_us
        return StepOutput(self.step.seq, count.copy(), tokens.copy(), status.copy(), self.lp_ids, self.lp, self.rank, prompt_lp, t_us=(t[0], t[1], t[2]))

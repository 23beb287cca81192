"""Step and StepOutput: the only two things that pass between the scheduler and an executor.

Who writes a field, its shape and its dtype stand beside it. Letters: N requests with rows in the step, T token rows
(sum of q), R head rows, S samples, C score spans, G KV groups, V vocabulary, k drafts per sample.

A *slot* is the executor's place for a running request (0 <= slot < limits.max_requests): it keeps the request's
sampling row, token history, last token, drafts, LoRA slot and block-table rows. A Step sends changes only.
A token's place inside a KV block is a *kv slot*.

Order inside one Step: `left`; `joined` that are not forks; `new_blocks`; forks (they copy the parent's history and block
rows as these then stand); `kv_ops`; forward; head; sampling; store. Changing this file needs an ADR.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from llmx.sample.params_rows import SamplingRow

__all__ = ["EMPTY_I32", "Encode", "Joined", "KvOp", "PromptLogprobs", "Status", "Step", "StepOutput", "Want"]

EMPTY_I32 = np.empty(0, dtype=np.int32)


class KvOp(IntEnum):
    """Operations on pages, carried out in the order written."""

    ZERO = 0  # dst becomes zero
    LOAD = 1  # dst is filled from the transfer store (src = transfer id)
    COPY = 2  # dst becomes a copy of src
    STATE_COPY = 3  # recurrent state: dst becomes a copy of src (prefix checkpoints)
    STATE_COMMIT = 4  # recurrent state: src (an index 0..k of the slot) is the accepted one
    STORE = 5  # src is written to the transfer store (dst = transfer id), after the forward


class Status(IntEnum):
    """Fate of one request's rows in one step; anything but OK ends that request alone."""

    OK = 0
    NAN = 1
    MASK_DEAD = 2
    KV_LOAD_FAILED = 3


@dataclass(slots=True)
class Joined:
    """A request that takes a slot. Written by the scheduler."""

    slot: int
    tokens: np.ndarray  # i32 [n]: prompt ids, then ids generated before a preemption; EMPTY for a fork
    prompt_len: int
    row: SamplingRow
    lora_slot: int = -1  # -1: no adapter
    media: tuple[str, ...] = ()
    fork_of: int = -1  # slot of the parent; -1: not a fork


@dataclass(slots=True)
class Want:
    """What one sample returns beside its tokens. Written by the scheduler."""

    top_logprobs: int = 0  # the chosen token's logprob and rank, and this many most likely tokens
    ids: np.ndarray | None = None  # i32 [m]: also the logprobs of these ids (columns after the top ones)
    hidden: tuple[str, ...] = ()  # named outputs of the Program


@dataclass(slots=True)
class Encode:
    """One encoder input to run before the forward. Written by the scheduler."""

    tower: str
    media_id: str
    arrays: dict[str, np.ndarray]
    cache_slot: int


@dataclass(slots=True)
class Step:
    """One turn of work. Written by the scheduler, read by the executor, changed by nobody after `submit`."""

    seq: int  # 0, 1, 2, ...: order of submission
    slot: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [N], short uniform rows first
    q: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [N] token rows that each request brings
    start: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [N] tokens whose KV is valid = first position
    tokens: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [T]; -1: what this executor produced last for the slot
    joined: list[Joined] = field(default_factory=list)
    left: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [*] slots given up
    new_blocks: tuple[np.ndarray, ...] = ()  # per group i32 [n, 3]: (slot, index in the block table, block id)
    kv_ops: np.ndarray = field(default_factory=lambda: np.empty((0, 4), np.int32))  # i32 [*, 4]: (KvOp, group, src, dst)
    head: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [R] token row of each head row
    samples: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int32))  # i32 [S, 3]: (slot, first head row, rows = 1 + drafts)
    score: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int32))  # i32 [C, 3]: (slot, first head row, rows): next token known, none drawn
    want: list[Want | None] = field(default_factory=list)  # [S], or [] when no sample wants anything
    score_top: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [C] top logprobs per score span
    draft_k: int = 0  # device drafters: tokens to propose per sample at the end of the step
    encode: list[Encode] = field(default_factory=list)
    late: bool = False  # sampling waits for Executor.release
    token_types: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [T] segment of each row (pairs of texts); empty: all 0

    @property
    def num_tokens(self) -> int:
        """T, the token rows of this step."""
        return int(self.tokens.shape[0])

    @property
    def num_requests(self) -> int:
        """N, the requests with rows in this step."""
        return int(self.slot.shape[0])


@dataclass(slots=True)
class PromptLogprobs:
    """Logprobs of one score span. Written by the executor."""

    ids: np.ndarray  # i32 [rows, 1 + top]: column 0 the token that really follows, then the most likely ones
    lp: np.ndarray  # f32 [rows, 1 + top]
    rank: np.ndarray  # i32 [rows], 1 = most likely


@dataclass(slots=True)
class StepOutput:
    """What one Step gave. Written by the executor; the arrays belong to the caller."""

    seq: int
    count: np.ndarray  # i32 [S] accepted drafts + 1 tokens; 0 where the request's status is not OK
    tokens: np.ndarray  # i32 [S, 1 + kmax]; columns past count are -1
    status: np.ndarray  # u8 [N], in the order of Step.slot
    lp_ids: np.ndarray | None = None  # i32 [S, 1 + kmax, W]: column 0 the chosen token, then Want.top_logprobs, then Want.ids; -1 pads
    lp: np.ndarray | None = None  # f32 [S, 1 + kmax, W]; -inf pads
    rank: np.ndarray | None = None  # i32 [S, 1 + kmax] rank of the chosen token, 1 = most likely
    prompt_lp: list[PromptLogprobs] = field(default_factory=list)  # [C]
    hidden: dict[str, np.ndarray] = field(default_factory=dict)  # f32 [R, W]; "pooled" always, where the Program has that result instead of logits
    drafts: np.ndarray | None = None  # i32 [S, draft_k]; -1 pads
    kv_done: np.ndarray = field(default_factory=lambda: EMPTY_I32)  # i32 [*] indexes of load/store ops finished since the last collect
    t_us: tuple[int, int, int] = (0, 0, 0)  # forward, sample, draft in microseconds
    waited_us: int | None = None  # of it, what `collect` waited for a step that ran beside the caller; None: all
    compiles: int = 0  # programs that were compiled for this step, while its requests waited

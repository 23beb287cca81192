"""Request: one answer being made. A user's request with n > 1 is n of these that share a prompt.

Who changes what: the scheduler owns state, slot and counters; the KV manager owns `tables`, `hashes` and `num_cached`;
the engine sets the finish. Nothing else writes here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np

from llmx.pooling_params import PoolingKind
from llmx.sample.params_rows import SamplingRow
from llmx.sampling_params import SamplingParams

if TYPE_CHECKING:
    from llmx.lora.slots import Adapter
    from llmx.structured.constraint import Constraint

__all__ = ["Request", "RequestState"]


class RequestState(IntEnum):
    """Where a request is. HELD: a child of n > 1 that waits for its parent's prompt to be computed."""

    WAITING = 0
    HELD = 1
    RUNNING = 2
    FINISHED = 3


@dataclass(slots=True, eq=False)
class Request:
    """One answer. Token counts are of prompt and generated tokens together unless they say otherwise."""

    id: str
    index: int  # 0 .. n - 1 within the user's request
    tokens: list[int]  # prompt, then generated
    prompt_len: int
    params: SamplingParams
    row: SamplingRow
    max_new: int  # generated tokens at most, context length included in the reckoning
    stop_ids: frozenset[int]  # token ids that end it
    arrival: int = 0  # counter: the order of arrival
    priority: int = 0  # lower runs earlier
    arrival_s: float = 0.0  # monotonic clock, for the queue delay
    started_s: float = 0.0  # the same clock: first admitted; 0.0 before
    num_preempted: int = 0
    cache_salt: bytes = b""
    constraint: Constraint | None = None  # the form that the answer must have; its tokens are masked
    adapter: Adapter | None = None  # the LoRA adapter that its rows use
    pooling: PoolingKind | None = None  # which rows of the prompt are wanted, instead of tokens
    whole_prompt: bool = False  # its prompt is computed in one step, and no cached prefix is read
    second_text: int = -1  # where the second text of a pair begins; -1: one text

    state: RequestState = RequestState.WAITING
    slot: int = -1
    num_computed: int = 0  # tokens whose KV is valid once the steps in flight are done
    num_pending: int = 0  # tokens drawn by steps in flight, not known yet
    steps_in_flight: int = 0
    children: list[Request] = field(default_factory=list)  # HELD; forked off when the prompt is computed
    parent: Request | None = None  # of a HELD child
    num_scored: int = 0  # prompt rows whose logprobs are scheduled or delivered
    times_passed: int = 0  # younger requests that were admitted before it while KV was short

    tables: list[list[int]] = field(default_factory=list)  # per KV group: block ids in token order; 0 where given back
    hashes: list[bytes] = field(default_factory=list)  # chained hashes of the full blocks known so far
    num_published: int = 0  # leading blocks that are in the prefix cache's index, or were offered to it
    num_cached: int = 0  # prompt tokens found in the prefix cache at the last admission
    num_drafted: int = 0  # tokens guessed ahead and verified, since it began
    num_accepted: int = 0  # of these, those that the model drew

    finish_reason: str | None = None
    stop_reason: int | None = None

    @property
    def lora_slot(self) -> int:
        """The executor's slot of its adapter; -1: none."""
        return -1 if self.adapter is None else self.adapter.slot

    @property
    def cache_keys(self) -> tuple[bytes, bytes]:
        """What, beside its tokens, decides the content of its pages: the adapter's digest, and the cache salt."""
        return b"" if self.adapter is None else self.adapter.digest, self.cache_salt

    @property
    def num_generated(self) -> int:
        """Generated tokens that are known."""
        return len(self.tokens) - self.prompt_len

    @property
    def num_scheduled_total(self) -> int:
        """Tokens that exist once the steps in flight are done."""
        return len(self.tokens) + self.num_pending

    @property
    def wants_token(self) -> bool:
        """True while a further token may be drawn, those in flight counted."""
        return self.num_scheduled_total - self.prompt_len < self.max_new

    @property
    def in_prefill(self) -> bool:
        """True while more than one known token has no KV."""
        return len(self.tokens) - self.num_computed > 1

    def end_after(self, token: int) -> Literal["stop", "length"] | None:
        """Why it ends with this token, its last known one; None: it goes on."""
        if token in self.stop_ids and self.num_generated > self.params.min_tokens:
            return "stop"
        return "length" if self.num_generated >= self.max_new else None

    @property
    def finished(self) -> bool:
        """True once it has ended, whatever is still in flight for it."""
        return self.state is RequestState.FINISHED

    @property
    def asked_ids(self) -> np.ndarray | None:
        """i32 [m]: tokens whose logprobs the user wants whatever they are; None without any."""
        asked = self.params.logprob_token_ids
        return None if asked is None else np.array(asked, dtype=np.int32)

    def token_array(self) -> np.ndarray:
        """int32 [n]: all known tokens."""
        return np.array(self.tokens, dtype=np.int32)

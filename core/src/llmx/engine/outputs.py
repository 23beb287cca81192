"""What a caller of LLM or AsyncEngine gets back: text, tokens, logprobs and why it ended.

A RequestOutput of a stream is cumulative: `outputs[i].text` is all text so far that may be shown (never half a character,
never the start of a stop string); `text_delta` and `new_token_ids` are what this output adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from llmx.lora.request import LoRARequest

__all__ = [
    "NOTHING_ALLOWED",
    "STEP_TOKEN_BOUNDS",
    "CompletionOutput",
    "EngineStats",
    "FinishReason",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "TokenLogprobs",
]

STEP_TOKEN_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# The error of an answer whose own limits left it no token: its request is at fault, not the engine.
NOTHING_ALLOWED = "no token may be drawn: allowed_token_ids, logit_bias or the grammar exclude the whole vocabulary"
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class Logprob:
    """One candidate token at one place. rank 1 is the most likely; None where it was not computed."""

    logprob: float  # natural log of the model's probability, before temperature and penalties
    rank: int | None = None
    decoded_token: str | None = None  # the token decoded alone; may hold U+FFFD for a part of a character
    token_id: int = -1
    bytes: bytes = b""  # the token's exact bytes


class TokenLogprobs(dict[int, Logprob]):
    """The candidates at one place, by token id: the token that stands there first, then the most likely, then those asked for by id.

    token: the token that stands there. top: the most likely ones in order (the token may be among them).
    """

    __slots__ = ("token", "top")

    def __init__(self, token: Logprob, top: Iterable[Logprob] = (), asked: Iterable[Logprob] = ()) -> None:
        super().__init__({token.token_id: token})
        self.token = token
        self.top = list(top)
        for one in (*self.top, *asked):
            self.setdefault(one.token_id, one)


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request as its caller saw them, in seconds: arrival_time by the wall clock, the others by the monotonic one."""

    arrival_time: float
    queued_ts: float
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    num_generation_tokens: int = 0
    scheduled_ts: float = 0.0  # when the engine first computed something for it
    num_preemptions: int = 0  # of the answer that was preempted most often

    @property
    def first_token_latency(self) -> float:
        """From arrival to the first token; 0 while there is none."""
        return max(self.first_token_ts - self.queued_ts, 0.0)

    def note(self, num_tokens: int) -> None:
        """Tokens have come now."""
        if num_tokens:
            self.last_token_ts = monotonic()
            self.first_token_ts = self.first_token_ts or self.last_token_ts
            self.num_generation_tokens += num_tokens


@dataclass(slots=True)
class CompletionOutput:
    """One of the n answers to a request."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None  # one entry per token of token_ids, when asked for; a FlatLogprobs with flat_logprobs
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it; None for EOS
    error: str | None = None  # with finish_reason "error"
    text_delta: str = ""
    new_token_ids: list[int] = field(default_factory=list)
    lora_request: LoRARequest | None = None  # the adapter that made it, of offline calls
    num_draft_tokens: int = 0  # tokens guessed ahead for it and verified
    num_accepted_tokens: int = 0  # of these, those that the model drew

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the logprobs of token_ids, when asked for."""
        return None if self.logprobs is None else sum(entry.token.logprob for entry in self.logprobs)

    @property
    def finished(self) -> bool:
        """True once this answer has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The state of one request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # entry 0 is None: nothing precedes it
    num_cached_tokens: int = 0  # prompt tokens whose KV came from the prefix cache
    metrics: RequestMetrics | None = None
    lora_request: LoRARequest | None = None  # the adapter that made it, of offline calls
    kv_transfer_params: None = None  # KV is not transferred between engines: always None


@dataclass(slots=True)
class EngineStats:
    """Counters (since the start) and gauges of one engine; what /metrics shows."""

    requests_running: int = 0
    requests_waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0  # held by running requests
    kv_blocks_cached: int = 0  # free, kept for prefix hits
    kv_map: list[tuple[int, int]] = field(default_factory=list)  # when asked for: runs (BlockState, how many) in the order of the blocks
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    drafts: int = 0  # steps of requests that had drafts
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)  # empty: no drafting
    steps: int = 0
    step_tokens: int = 0  # token rows of all steps
    step_token_buckets: list[int] = field(default_factory=lambda: [0] * (len(STEP_TOKEN_BOUNDS) + 1))  # steps with at most so many rows; the last: more
    requests_finished: dict[str, int] = field(default_factory=dict)  # by finish reason
    lora_loaded: int = 0  # adapters that may be named
    lora_slots: int = 0  # of the executor
    lora_slots_used: int = 0
    lora_swaps: int = 0  # adapters brought into a slot
    step_budget_used: float = 0.0  # share of the token budget that the last step used
    device_busy: float = 0.0  # share of recent time that steps took
    queue_delay_s: float = 0.0  # age of the oldest waiting request
    forward_us: int = 0
    sample_us: int = 0
    python_us: int = 0  # engine time outside the executor
    jit_compiles: int = 0  # programs compiled while requests waited for them

"""What a caller of LLM or AsyncEngine gets back: text, tokens, logprobs and why it ended.

A RequestOutput of a stream is cumulative: `outputs[i].text` is all text so far that may be shown (never half a character,
never the start of a stop string); `text_delta` and `new_token_ids` are what this output adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CompletionOutput", "EngineStats", "FinishReason", "Logprob", "RequestOutput", "TokenLogprobs"]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class Logprob:
    """One candidate token at one place. rank 1 is the most likely."""

    token_id: int
    logprob: float  # natural log of the model's probability, before temperature and penalties
    rank: int | None
    text: str  # the token decoded alone; may hold U+FFFD for a part of a character
    bytes: bytes  # the token's exact bytes


@dataclass(slots=True)
class TokenLogprobs:
    """A token and the most likely candidates at its place (the token itself may be among them)."""

    token: Logprob
    top: list[Logprob] = field(default_factory=list)


@dataclass(slots=True)
class CompletionOutput:
    """One of the n answers to a request."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None  # one entry per token of token_ids, when asked for
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it; None for EOS
    error: str | None = None  # with finish_reason "error"
    text_delta: str = ""
    new_token_ids: list[int] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """True once this answer has ended."""
        return self.finish_reason is not None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the logprobs of token_ids, when asked for."""
        return None if self.logprobs is None else sum(entry.token.logprob for entry in self.logprobs)


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


@dataclass(slots=True)
class EngineStats:
    """Counters (since the start) and gauges of one engine; what /metrics shows."""

    requests_running: int = 0
    requests_waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0  # held by running requests
    kv_blocks_cached: int = 0  # free, kept for prefix hits
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    steps: int = 0
    requests_finished: dict[str, int] = field(default_factory=dict)  # by finish reason
    step_budget_used: float = 0.0  # share of the token budget that the last step used
    device_busy: float = 0.0  # share of recent time that steps took
    queue_delay_s: float = 0.0  # age of the oldest waiting request
    forward_us: int = 0
    sample_us: int = 0
    python_us: int = 0  # engine time outside the executor

"""What plugins are told of a running engine and its server: steps, statistics, requests. Data only, without any text of prompts and answers.

Fields are only added, with defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from llmx.record import record

__all__ = ["GenerationRecord", "RequestObserver", "RequestRecord", "StatLogger", "StatReading", "StepObserver", "StepRecord"]


@record
class StepRecord:
    """One step of an engine that has ended. Times in microseconds: total_us is the engine's turn in which it ended, the others are the executor's.

    number: of the step, from 1. ended_ns: unix time. prefill_tokens, decode_tokens: rows of prompts, and of answers with their drafts. running,
    waiting: requests behind the step. Blocks are those of the KV cache.
    """

    number: int
    ended_ns: int
    requests: int
    prefill_tokens: int
    decode_tokens: int
    total_us: int
    forward_us: int
    sample_us: int
    draft_us: int
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int


StepObserver = Callable[[StepRecord], None]  # called by the engine's thread between two steps: what it takes, every request waits for


@record
class StatReading:
    """What an engine counts, read at one moment. values: by the names that /metrics has. ended: answers that have ended, by finish reason."""

    model: str
    time_ns: int  # unix time
    values: Mapping[str, float]
    ended: Mapping[str, int]


class StatLogger(Protocol):
    """Is told of readings, one at a time, on a thread of its own."""

    def record(self, reading: StatReading) -> None:
        """A reading; readings that come while this runs are not told."""


@dataclass(slots=True, eq=False)
class GenerationRecord:
    """One prompt in the engine, and its answers. Times are unix times in ns, 0 where there was none. The server writes it; observers read it.

    error: why it did not run to its end (abort, refused, timeout, engine_dead); "" when it did, or still runs.
    """

    id: str
    kind: Literal["generate", "pool"]
    model: str
    prompt_tokens: int
    n: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    arrived_ns: int = 0
    scheduled_ns: int = 0  # the first step that computed something for it
    first_token_ns: int = 0
    last_token_ns: int = 0
    ended_ns: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    generated_tokens: int = 0  # of all answers
    preemptions: int = 0
    finish_reasons: tuple[str, ...] = ()
    error: str = ""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request to the server. method: of HTTP, WEBSOCKET for a connection, or "" for what came another way, then path is "" too.

    headers: only traceparent, tracestate and user-agent. notes: observers keep what they want here, under keys of their own.
    """

    id: str  # of the header X-Request-Id
    method: str
    path: str
    headers: Mapping[str, str]
    arrived_ns: int
    route: str = ""  # the path of the route that answered, with its parameters by name
    status: int = 0  # of HTTP; 0 while there is none
    ended_ns: int = 0
    error: str = ""  # the class of an exception that ended it
    generations: list[GenerationRecord] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


class RequestObserver(Protocol):
    """Is told of requests on the server's event loop: each call must be short. Of a request that works on in the background, generations end after it."""

    def arrived(self, request: RequestRecord) -> None:
        """A request has come; nothing of it has been checked."""

    def first_token(self, request: RequestRecord, generation: GenerationRecord) -> None:
        """A prompt has its first token."""

    def generated(self, request: RequestRecord, generation: GenerationRecord) -> None:
        """A prompt has all its answers, or has failed."""

    def ended(self, request: RequestRecord) -> None:
        """The request is answered, or its connection is gone."""

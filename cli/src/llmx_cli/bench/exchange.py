"""One measured request: what is sent, and when each piece of the answer came."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec

from llmx_cli.bench.client import Client, HttpFailure

__all__ = ["Exchange", "PATHS", "perform"]

PATHS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


@dataclass(slots=True)
class Exchange:
    """A request and its answer. Times are of perf_counter, in seconds. error "": it was answered whole."""

    due: float  # when it should have been sent
    sent: float = 0.0
    first: float = 0.0  # first piece of text
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)  # between pieces
    pieces: list[float] = field(default_factory=list)  # when each came
    text: list[str] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False  # by the server's usage
    error: str = ""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_EVENTS = msgspec.json.Decoder(_Event)


async def perform(client: Client, path: str, body: dict[str, Any], exchange: Exchange, *, keep_text: bool) -> None:
    """Send one request and record its answer in `exchange`; failures are recorded too."""
    message = msgspec.json.encode(body)

    def on_event(data: bytes, now: float) -> None:
        if data != b"[DONE]":
            _record(exchange, _EVENTS.decode(data), now, keep_text)

    exchange.sent = perf_counter()
    try:
        await client.request(path, message, on_event)
    except (HttpFailure, msgspec.DecodeError) as error:
        exchange.error = str(error)
    if not exchange.error and not exchange.pieces:
        exchange.error = "the answer had no text"
    if not exchange.counted:
        exchange.output_tokens = len(exchange.pieces)


def _record(exchange: Exchange, event: _Event, now: float, keep_text: bool) -> None:
    if event.error is not None:
        exchange.error = str(event.error.get("message", event.error) if isinstance(event.error, dict) else event.error)
    if event.usage is not None:
        exchange.input_tokens, exchange.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens or 0
        exchange.counted = True
    for choice in event.choices:
        delta = choice.delta
        text = choice.text if delta is None else (delta.content or delta.reasoning_content)
        if text:
            if exchange.first:
                exchange.gaps.append(now - exchange.last)
            else:
                exchange.first = now
            exchange.pieces.append(now)
            if keep_text:
                exchange.text.append(text)
            exchange.last = now

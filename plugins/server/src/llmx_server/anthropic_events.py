"""Anthropic's stream: message_start, then blocks, each started, filled and stopped in turn, then message_delta and message_stop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from llmx.answers.events import CallArguments, CallStart, Content, Event, Reasoning
from llmx_server.answer_form import AnswerForm, CallIds
from llmx_server.errors import failure_body, failure_status
from llmx_server.frames import named
from llmx_server.generation import Answers, stream
from llmx_server.jobs import Job
from llmx_server.protocol.anthropic import stop_of, usage_counts
from llmx_server.protocol.anthropic_errors import anthropic_error
from llmx_server.serving import Serving

__all__ = ["error_event", "message_events"]


def error_event(error: Exception) -> bytes:
    """The event that ends a stream which failed."""
    return named(anthropic_error(failure_status(error)[0], failure_body(error)["error"]["message"]))


async def message_events(serving: Serving, job: Job, form: AnswerForm, head: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """The events of one answer."""
    answers, parser, blocks = Answers(job), form.parser(), _Blocks(CallIds("anthropic"))
    chars = 0
    counts = usage_counts(len(job.token_ids), 0, 0)
    start = named({"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}})
    async with aclosing(stream(serving, [job])) as outputs:
        async for _, output in outputs:
            answers.update(output)
            if start:  # only now: what is refused before its first step is answered with its own status
                yield start
                start = b""
            answer = answers.by_index[0]
            events = [*parser.feed(answer.text[chars:]), *(parser.finish() if answer.finished else [])]
            chars = len(answer.text)
            if chunk := blocks.of(form.events(events)):
                yield chunk
    answer = answers.by_index[0]
    reason, stop = stop_of(answer.finish_reason, answer.stop_reason, blocks.called)
    counts = usage_counts(answers.prompt_tokens, answers.cached_tokens, answers.completion_tokens)
    end = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": counts}
    yield blocks.stop() + named(end) + named({"type": "message_stop"})


class _Blocks:
    """The blocks so far; one is open at a time."""

    def __init__(self, ids: CallIds) -> None:
        self._ids = ids
        self._index = -1
        self._open = ""
        self.called = False

    def of(self, events: Sequence[Event]) -> bytes:
        """The bytes that tell of events."""
        return b"".join(self._one(event) for event in events)

    def stop(self) -> bytes:
        """Close the open block."""
        if not self._open:
            return b""
        kind, self._open = self._open, ""
        signature = self._delta({"type": "signature_delta", "signature": ""}) if kind == "thinking" else b""
        return signature + named({"type": "content_block_stop", "index": self._index})

    def _one(self, event: Event) -> bytes:
        match event:
            case Content(text):
                return self._start("text", {"type": "text", "text": ""}) + self._delta({"type": "text_delta", "text": text})
            case Reasoning(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._start("thinking", block) + self._delta({"type": "thinking_delta", "thinking": text})
            case CallStart(index, name, call_id):
                self.called = True
                return self._start(f"call {index}", {"type": "tool_use", "id": self._ids.of(call_id), "name": name, "input": {}})
            case CallArguments(_, text):
                return self._delta({"type": "input_json_delta", "partial_json": text})

    def _start(self, kind: str, block: Mapping[str, Any]) -> bytes:
        if kind == self._open:
            return b""
        closed = self.stop()
        self._open, self._index = kind, self._index + 1
        return closed + named({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return named({"type": "content_block_delta", "index": self._index, "delta": delta})

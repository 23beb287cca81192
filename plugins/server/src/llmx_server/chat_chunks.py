"""A chat stream: per choice the role first, then text with its logprobs, then how it ended; usage last when asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from llmx.answers.events import CallStart
from llmx.engine.outputs import CompletionOutput
from llmx_server.answer_form import AnswerForm, CallIds, deltas, finish_reason
from llmx_server.frames import Frames
from llmx_server.generation import Answers, stream
from llmx_server.jobs import Job
from llmx_server.protocol.chat import ChatRequest
from llmx_server.protocol.usage import usage_of
from llmx_server.serving import Serving

__all__ = ["chat_events"]


async def chat_events(
    serving: Serving, body: ChatRequest, job: Job, form: AnswerForm, frames: Frames, beside: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """The chunks, several joined where they are due together. beside: what the first chunk of each choice tells of the prompt."""
    at_end, in_each = body.usage_in_stream()
    answers = Answers(job)
    choices = [_Choice(index, body, form, frames) for index in range(job.params.n)]
    chunks = [chunk for choice in choices for chunk in choice.opening(beside)]
    async with aclosing(stream(serving, [job], interval=body.stream_interval)) as outputs:
        async for _, output in outputs:
            answers.update(output)
            so_far = usage_of([answers]) if in_each else None
            for answer in output.outputs:
                chunks += choices[answer.index].chunks(answer, so_far)
            if chunks:
                yield b"".join(chunks)
                chunks = []
    if at_end:
        yield frames.usage(usage_of([answers]))


class _Choice:
    """What of one choice the client has seen; chunks are cut from the cumulative answer at what was sent."""

    def __init__(self, index: int, body: ChatRequest, form: AnswerForm, frames: Frames) -> None:
        self._index, self._body, self._form, self._frames = index, body, form, frames
        self._parser = None if form.plain else form.parser()
        self._ids_of_calls = CallIds(form.ids)
        self._called = False
        self._chars = self._tokens = self._ids = 0
        self._ended = False

    def opening(self, beside: dict[str, Any]) -> list[bytes]:
        """The chunks before the first token."""
        first = self._frames.choice(self._index, "delta", {"role": "assistant", "content": ""}, beside=beside)
        echo = self._body.echoed()
        return [first, self._frames.choice(self._index, "delta", {"content": echo})] if echo else [first]

    def chunks(self, answer: CompletionOutput, so_far: dict[str, Any] | None) -> list[bytes]:
        """What is new. Logprobs and ids wait for the text that they belong to, so that one chunk has all."""
        if self._ended:
            return []
        chunks: list[bytes] = []
        late = answer.finished and (self._logprobs_due(answer) or self._ids_due(answer))
        if len(answer.text) > self._chars or late:
            parts = self._parts(answer.text[self._chars :], answer.finished)
            self._chars = len(answer.text)
            if late and not parts:
                parts = [{"content": ""}]
            for number, delta in enumerate(parts):
                logprobs, ids = (self._logprobs(answer), self._token_ids(answer)) if number == 0 else (None, None)
                chunks.append(self._frames.choice(self._index, "delta", delta, logprobs, more=ids, usage=so_far))
        elif answer.finished:
            chunks += [self._frames.choice(self._index, "delta", delta, usage=so_far) for delta in self._parts("", True)]
        if answer.finished:
            reason = finish_reason(answer.finish_reason, self._called, self._form.tools)
            chunks.append(self._frames.choice(self._index, "delta", {}, None, reason, answer.stop_reason, usage=so_far))
            self._ended = True
        return chunks

    def _parts(self, text: str, finished: bool) -> list[dict[str, Any]]:
        """The deltas that new text gives; none while it may still become a marker."""
        if self._parser is None:
            return [{"content": text}] if text else []
        events = self._form.events([*self._parser.feed(text), *(self._parser.finish() if finished else [])])
        self._called = self._called or any(isinstance(event, CallStart) for event in events)
        return deltas(events, self._ids_of_calls)

    def _logprobs_due(self, answer: CompletionOutput) -> bool:
        return self._body.logprobs and len(answer.logprobs or []) > self._tokens

    def _ids_due(self, answer: CompletionOutput) -> bool:
        return self._body.return_token_ids and len(answer.token_ids) > self._ids

    def _logprobs(self, answer: CompletionOutput) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        new, self._tokens = (answer.logprobs or [])[self._tokens :], len(answer.logprobs or [])
        return self._body.shown_logprobs(new)

    def _token_ids(self, answer: CompletionOutput) -> dict[str, Any] | None:
        if not self._body.return_token_ids:
            return None
        new, self._ids = answer.token_ids[self._ids :], len(answer.token_ids)
        return {"token_ids": new}

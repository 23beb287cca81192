"""Making responses: whole, streamed, or in the background, where they go on without their client."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from llmx.answers.parser import Parser
from llmx.errors import LlmxError
from llmx_server.answer_form import AnswerForm
from llmx_server.caller import caller
from llmx_server.generation import Answers, collect, stream
from llmx_server.jobs import Job
from llmx_server.protocol.responses import ResponsesRequest
from llmx_server.response_logprobs import TextLogprobs
from llmx_server.response_store import Record, ResponseStore
from llmx_server.response_writer import ResponseWriter
from llmx_server.serving import Serving

__all__ = ["ResponseRun"]

_log = logging.getLogger("llmx.server")


@dataclass(slots=True)
class ResponseRun:
    """One response being made. store: where it is kept; None: nowhere."""

    serving: Serving
    job: Job
    form: AnswerForm
    record: Record
    store: ResponseStore | None
    writer: ResponseWriter
    logprobs: TextLogprobs | None

    @classmethod
    def start(
        cls, serving: Serving, body: ResponsesRequest, model: str, job: Job, form: AnswerForm, items: list[dict[str, Any]], store: ResponseStore | None
    ) -> ResponseRun:
        """A run whose response is kept from now on. Raises RequestError for a request_id that is in use."""
        response = {
            "id": f"resp_{body.request_id or uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            "store": store is not None,
            **body.echoed(job.params),
        }
        logprobs = TextLogprobs(body.top_logprobs or 0) if body.wants_logprobs else None
        record = Record(response, items, owner=caller().name)
        if store is not None:
            store.open(record)
        return cls(serving, job, form, record, store, ResponseWriter(response, logprobs.take if logprobs else None), logprobs)

    async def whole(self) -> dict[str, Any]:
        """The response, once it has ended. Cancelled, or with an error, it leaves nothing behind."""
        try:
            answers = (await collect(self.serving, [self.job]))[0]
            self.writer.started()
            self._feed(answers, self.form.parser(), 0)
            self._end(answers)
        finally:
            self._settle()
        return self.record.response

    async def streamed(self) -> AsyncGenerator[bytes, None]:
        """The events, several joined where they are due together. Closed before the end, it leaves nothing behind."""
        try:
            async with aclosing(self._told()) as events:
                async for new in events:
                    yield b"".join(new)
        finally:
            self._settle()

    def in_background(self) -> None:
        """Begin, and return. The events are kept in the record."""
        self.record.publish(self.writer.queued())
        self.record.task = asyncio.create_task(self._run())
        self.record.task.add_done_callback(self._over)

    async def _run(self) -> None:
        async with aclosing(self._told()) as events:
            async for new in events:
                self.record.publish(new)

    def _over(self, task: asyncio.Task[None]) -> None:
        """The task has ended; one that is cancelled before its first step never comes to its own code."""
        if task.cancelled():
            self.writer.cancelled()
        self._settle()
        self.record.publish()

    async def _told(self) -> AsyncGenerator[list[bytes], None]:
        """The events; an error becomes the last of them, unless a client can still be given it as a status."""
        begun = self.record.task is not None
        try:
            async with aclosing(self._events()) as events:
                async for new in events:
                    begun = True
                    yield new
        except Exception as error:  # noqa: BLE001  the border to the client
            if not begun:
                raise
            if not isinstance(error, LlmxError):
                _log.exception("a response failed")
            yield self.writer.failed(error)

    async def _events(self) -> AsyncGenerator[list[bytes], None]:
        answers, parser, chars, begun = Answers(self.job), self.form.parser(), 0, False
        async with aclosing(stream(self.serving, [self.job])) as outputs:
            async for _, output in outputs:
                answers.update(output)
                # Only now: what is refused before its first step is answered with its own status.
                new = [] if begun else self.writer.started()
                begun = True
                new += self._feed(answers, parser, chars)
                chars = len(answers.by_index[0].text)
                if new:
                    yield new
        yield self._end(answers)

    def _feed(self, answers: Answers, parser: Parser, chars: int) -> list[bytes]:
        """What the text after `chars` says."""
        answer = answers.by_index[0]
        if self.logprobs is not None:
            self.logprobs.update(answer.logprobs or [])
        events = [*parser.feed(answer.text[chars:]), *(parser.finish() if answer.finished else [])]
        return self.writer.add(self.form.events(events))

    def _end(self, answers: Answers) -> list[bytes]:
        usage = {
            "input_tokens": answers.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answers.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answers.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": answers.reasoning_tokens},
            "total_tokens": answers.prompt_tokens + answers.completion_tokens,
        }
        events = self.writer.end(answers.by_index[0].finish_reason, usage)
        self._settle()
        return events

    def _settle(self) -> None:
        """Keep it if it has ended, once; forget it otherwise."""
        if self.store is None:
            return
        if not self.record.ended:
            self.store.drop(self.record)
        elif not self.record.size:
            self.store.settle(self.record)

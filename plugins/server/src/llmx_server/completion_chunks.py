"""Answers to completions, whole or streamed: the echoed prompt first, text and logprobs cut at what the client has seen."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from llmx.engine.outputs import CompletionOutput, Logprob, RequestOutput
from llmx_server.frames import Frames
from llmx_server.generation import Answers, stream
from llmx_server.jobs import Job
from llmx_server.protocol.completions import CompletionRequest, completion_choice
from llmx_server.protocol.logprobs import LegacyLogprobs, prompt_logprobs
from llmx_server.protocol.usage import usage_of
from llmx_server.serving import Serving

__all__ = ["completion_choices", "completion_events"]


def completion_choices(serving: Serving, body: CompletionRequest, answers: list[Answers]) -> list[dict[str, Any]]:
    """All choices of a whole answer; choice k of prompt i has the index i * n + k."""
    choices = []
    for of_prompt in answers:
        for answer in body.best(of_prompt.in_order):
            shown = _Shown(serving, body, of_prompt.job, answer.index)
            text, logprobs, more = shown.add(of_prompt.output, answer)
            choice = completion_choice(shown.index, text, logprobs, answer) | more
            if body.prompt_logprobs is not None and of_prompt.output:
                choice["prompt_logprobs"] = prompt_logprobs(of_prompt.output.prompt_logprobs, body.prompt_logprobs)
            choices.append(choice)
    return choices


async def completion_events(serving: Serving, body: CompletionRequest, jobs: list[Job], frames: Frames) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream, several joined where they are due together."""
    at_end, in_each = body.usage_in_stream()
    answers = {job.index: Answers(job) for job in jobs}
    shown: dict[tuple[int, int], _Shown] = {}
    async with aclosing(stream(serving, jobs, interval=body.stream_interval)) as outputs:
        async for job, output in outputs:
            answers[job.index].update(output)
            so_far = usage_of(list(answers.values())) if in_each else None
            chunks = []
            for answer in output.outputs:
                state = shown.setdefault((job.index, answer.index), _Shown(serving, body, job, answer.index))
                if state.has_news(answer):
                    text, logprobs, more = state.add(output, answer)
                    chunks.append(frames.choice(state.index, "text", text, logprobs, answer.finish_reason, answer.stop_reason, more=more, usage=so_far))
            if chunks:
                yield b"".join(chunks)
    if at_end:
        yield frames.usage(usage_of(list(answers.values())))


class _Shown:
    """What of one choice the client has seen: text and logprobs are cut from the cumulative answer at what was sent."""

    def __init__(self, serving: Serving, body: CompletionRequest, job: Job, index: int) -> None:
        self.index = job.index * body.choices + index
        self._serving, self._body, self._job = serving, body, job
        self._chars = self._tokens = 0
        self._started = self._finished = False
        self._logprobs: LegacyLogprobs | None = None
        if body.logprobs is not None:
            as_ids, asked = body.return_tokens_as_token_ids, body.logprob_token_ids or ()
            self._logprobs = LegacyLogprobs(body.logprobs, len(job.text), self._is_shown, as_ids=as_ids, asked=asked)

    def has_news(self, answer: CompletionOutput) -> bool:
        """Whether a chunk is due. Logprobs wait for the text that they belong to."""
        return not self._finished and (answer.finished or len(answer.text) > self._chars or (self._body.echo and not self._started))

    def add(self, output: RequestOutput | None, answer: CompletionOutput) -> tuple[str, dict[str, Any] | None, dict[str, Any]]:
        """Text, logprobs and further keys of the choice that are new."""
        text, logprobs = answer.text[self._chars :], None
        echoes = self._body.echo and not self._started
        if self._logprobs is not None:
            logprobs = self._prompt_part(self._logprobs, output) if echoes else None
            new = self._logprobs.add((answer.logprobs or [])[self._tokens :])
            logprobs = _joined(logprobs, new) if logprobs else new
        more: dict[str, Any] = {}
        if self._body.return_token_ids:
            more = {"token_ids": answer.token_ids[self._tokens :]} | ({} if self._started else {"prompt_token_ids": self._job.token_ids})
        self._chars, self._tokens = len(answer.text), len(answer.token_ids)
        self._started, self._finished = True, answer.finished
        return (self._job.text + text if echoes else text), logprobs, more

    def _prompt_part(self, logprobs: LegacyLogprobs, output: RequestOutput | None) -> dict[str, Any]:
        tokenizer = self._serving.engine.tokenizer
        tokens = [Logprob(0.0, None, tokenizer.token_text(token), token, tokenizer.token_bytes(token)) for token in self._job.token_ids]
        return logprobs.add_prompt(tokens, (output and output.prompt_logprobs) or [None] * len(tokens))

    def _is_shown(self, token: Logprob) -> bool:
        return not (self._job.params.skip_special_tokens and self._serving.engine.tokenizer.is_special(token.token_id))


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else [*value, *second[name]] for name, value in first.items()}

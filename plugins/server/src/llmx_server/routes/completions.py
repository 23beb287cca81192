"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmx.engine.outputs import CompletionOutput, Logprob, RequestOutput
from llmx_server.body import read_body
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.generation import Answers, Job, collect, make_job, stream
from llmx_server.protocol.completions import CompletionRequest, completion, completion_choice
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.logprobs import LegacyLogprobs, prompt_logprobs
from llmx_server.protocol.usage import response_head, usage
from llmx_server.schema import json_body
from llmx_server.serving import Serving, serving_of
from llmx_server.sse import EventStream, Frames

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    serving = serving_of(request)
    serving.check_ready()
    body = await read_body(request, CompletionRequest)
    model = serving.model_name(body.model)
    headers = warning_header(check_extra(body.model_extra))
    with_usage = body.include_usage()
    jobs = await _jobs(serving, body)
    head = response_head("cmpl", "text_completion", model, serving.fingerprint)
    if body.stream:
        return EventStream(_events(serving, body, jobs, Frames(head, with_usage=with_usage), with_usage), headers)
    answers = await until_disconnect(request.receive, collect(serving, jobs))
    return JsonResponse(_whole(serving, body, head, answers), headers=headers)


async def _jobs(serving: Serving, body: CompletionRequest) -> list[Job]:
    """All prompts, each checked, before the first runs."""
    params = body.params(serving.engine.info.vocab_size, serving.engine.sampling_defaults)
    serving.check_priority(params.priority)
    special, given, salt = body.add_special_tokens, body.max_tokens is not None, body.salt()
    return [
        await make_job(serving, prompt, params, index=index, add_special_tokens=special, max_tokens_given=given, cache_salt=salt)
        for index, prompt in enumerate(body.prompts())
    ]


def _whole(serving: Serving, body: CompletionRequest, head: dict[str, Any], answers: list[Answers]) -> dict[str, Any]:
    choices = []
    for of_prompt in answers:
        for answer in of_prompt.in_order:
            shown = _Shown(serving, body, of_prompt.job, answer.index)
            text, logprobs = shown.add(of_prompt.output, answer)
            choice = completion_choice(shown.index, text, logprobs, answer)
            if body.prompt_logprobs is not None and of_prompt.output:
                choice["prompt_logprobs"] = prompt_logprobs(of_prompt.output.prompt_logprobs)
            choices.append(choice)
    return completion(head, choices, _usage(answers))


async def _events(serving: Serving, body: CompletionRequest, jobs: list[Job], frames: Frames, with_usage: bool) -> AsyncGenerator[bytes, None]:
    answers = {job.index: Answers(job) for job in jobs}
    shown: dict[tuple[int, int], _Shown] = {}
    async with aclosing(stream(serving, jobs)) as outputs:
        async for job, output in outputs:
            answers[job.index].update(output)
            chunks = []
            for answer in output.outputs:
                state = shown.setdefault((job.index, answer.index), _Shown(serving, body, job, answer.index))
                if state.has_news(answer):
                    text, logprobs = state.add(output, answer)
                    chunks.append(frames.choice(state.index, "text", text, logprobs, answer.finish_reason, answer.stop_reason))
            if chunks:
                yield b"".join(chunks)
    if with_usage:
        yield frames.usage(_usage(list(answers.values())))


def _usage(answers: list[Answers]) -> dict[str, Any]:
    prompt, generated, cached = (sum(getattr(one, name) for one in answers) for name in ("prompt_tokens", "completion_tokens", "cached_tokens"))
    return usage(prompt, generated, cached)


class _Shown:
    """What of one choice the client has seen: text and logprobs are cut from the cumulative answer at what was sent."""

    def __init__(self, serving: Serving, body: CompletionRequest, job: Job, index: int) -> None:
        self.index = job.index * job.params.n + index
        self._serving = serving
        self._job = job
        self._echo = body.echo
        self._chars = 0
        self._tokens = 0
        self._started = False
        self._finished = False
        self._logprobs = None if body.logprobs is None else LegacyLogprobs(body.logprobs, len(job.text), self._is_shown)

    def has_news(self, answer: CompletionOutput) -> bool:
        """Whether a chunk is due. Logprobs wait for the text that they belong to."""
        return not self._finished and (answer.finished or len(answer.text) > self._chars or (self._echo and not self._started))

    def add(self, output: RequestOutput | None, answer: CompletionOutput) -> tuple[str, dict[str, Any] | None]:
        """Text and logprobs that are new."""
        text, logprobs = answer.text[self._chars :], None
        echoes = self._echo and not self._started
        if self._logprobs is not None:
            logprobs = self._prompt_part(self._logprobs, output) if echoes else None
            new = self._logprobs.add((answer.logprobs or [])[self._tokens :])
            self._tokens = len(answer.logprobs or [])
            logprobs = _joined(logprobs, new) if logprobs else new
        self._chars, self._started, self._finished = len(answer.text), True, answer.finished
        return (self._job.text + text if echoes else text), logprobs

    def _prompt_part(self, logprobs: LegacyLogprobs, output: RequestOutput | None) -> dict[str, Any]:
        tokenizer = self._serving.engine.tokenizer
        tokens = [Logprob(0.0, None, tokenizer.token_text(token), token, tokenizer.token_bytes(token)) for token in self._job.token_ids]
        return logprobs.add_prompt(tokens, (output and output.prompt_logprobs) or [None] * len(tokens))

    def _is_shown(self, token: Logprob) -> bool:
        return not (self._job.params.skip_special_tokens and self._serving.engine.tokenizer.is_special(token.token_id))


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else [*value, *second[name]] for name, value in first.items()}

"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmx_server.body import read_body
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.generation import Answers, Job, collect, make_job, stream
from llmx_server.protocol.chat import ChatRequest, chat_choice
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.logprobs import chat_logprobs, prompt_logprobs
from llmx_server.protocol.usage import response_head, usage
from llmx_server.schema import json_body
from llmx_server.serving import Serving, serving_of
from llmx_server.sse import EventStream, Frames

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    serving = serving_of(request)
    serving.check_ready()
    body = await read_body(request, ChatRequest)
    model = serving.model_name(body.model)
    headers = warning_header(check_extra(body.model_extra))
    with_usage = body.include_usage()
    job = await _job(serving, body)
    if body.stream:
        head = response_head("chatcmpl", "chat.completion.chunk", model, serving.fingerprint)
        return EventStream(_events(serving, body, job, Frames(head, with_usage=with_usage), with_usage), headers)
    head = response_head("chatcmpl", "chat.completion", model, serving.fingerprint)
    answers = (await until_disconnect(request.receive, collect(serving, [job])))[0]
    choices = [chat_choice(answer, chat_logprobs(answer.logprobs or [], body.top_logprobs or 0) if body.logprobs else None) for answer in answers.in_order]
    whole = {**head, "choices": choices, "usage": usage(answers.prompt_tokens, answers.completion_tokens, answers.cached_tokens)}
    if body.prompt_logprobs is not None and answers.output:
        whole["prompt_logprobs"] = prompt_logprobs(answers.output.prompt_logprobs)
    return JsonResponse(whole, headers=headers)


async def _job(serving: Serving, body: ChatRequest) -> Job:
    params = body.params(serving.engine.info.vocab_size, serving.engine.sampling_defaults)
    serving.check_priority(params.priority)
    prompt = serving.render(body.template_arguments())
    return await make_job(serving, prompt, params, add_special_tokens=body.add_special_tokens, max_tokens_given=True, cache_salt=body.salt())


async def _events(serving: Serving, body: ChatRequest, job: Job, frames: Frames, with_usage: bool) -> AsyncGenerator[bytes, None]:
    answers = Answers(job)
    chars, tokens = [0] * job.params.n, [0] * job.params.n  # sent so far, per choice
    open_choices = set(range(job.params.n))
    role = {"role": "assistant", "content": ""}
    chunks = [frames.choice(index, "delta", role) for index in range(job.params.n)]
    async with aclosing(stream(serving, [job])) as outputs:
        async for _, output in outputs:
            answers.update(output)
            for answer in output.outputs:
                index = answer.index
                if index not in open_choices:
                    continue
                if len(answer.text) > chars[index] or (answer.finished and body.logprobs and len(answer.logprobs or []) > tokens[index]):
                    # Logprobs wait for the text that they belong to, so that one chunk has both.
                    logprobs = chat_logprobs((answer.logprobs or [])[tokens[index] :], body.top_logprobs or 0) if body.logprobs else None
                    chunks.append(frames.choice(index, "delta", {"content": answer.text[chars[index] :]}, logprobs))
                    chars[index], tokens[index] = len(answer.text), len(answer.logprobs or [])
                if answer.finished:
                    chunks.append(frames.choice(index, "delta", {}, None, answer.finish_reason, answer.stop_reason))
                    open_choices.discard(index)
            if chunks:
                yield b"".join(chunks)
                chunks = []
    if with_usage:
        yield frames.usage(usage(answers.prompt_tokens, answers.completion_tokens, answers.cached_tokens))

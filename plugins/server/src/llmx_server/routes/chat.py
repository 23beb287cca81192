"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmx_server.answer_form import AnswerForm, CallIds, finish_reason, message_of
from llmx_server.body import read_body
from llmx_server.chat_chunks import chat_events
from llmx_server.chat_job import chat_job
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.frames import Frames
from llmx_server.generation import Answers, collect
from llmx_server.jobs import Job
from llmx_server.protocol.api_fields import CHAT
from llmx_server.protocol.chat import ChatRequest, chat_choice
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.logprobs import prompt_logprobs
from llmx_server.protocol.usage import response_head, usage_of
from llmx_server.schema import json_body
from llmx_server.serving import serving_of
from llmx_server.sse import EventStream

__all__ = ["router"]

router = APIRouter()


@router.post(CHAT, openapi_extra=json_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    serving = serving_of(request)
    serving.check_ready()
    body = await read_body(request, ChatRequest)
    model = serving.model_name(body.model)
    phrases = [*check_extra(CHAT, body.model_extra), *body.without_effect()]
    usage_at_end, _ = body.usage_in_stream()
    job, form, more = await chat_job(serving, body)
    headers = warning_header([*phrases, *more])
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    head = response_head("chatcmpl", kind, model, serving.fingerprint, **body.head_fields())
    if body.stream:
        return EventStream(chat_events(serving, body, job, form, Frames(head, with_usage=usage_at_end), _of_prompt(body, job)), headers)
    answers = (await until_disconnect(request.receive, collect(serving, [job])))[0]
    return JsonResponse({**head, **_whole(body, answers, form), **_of_prompt(body, job)}, headers=headers)


def _whole(body: ChatRequest, answers: Answers, form: AnswerForm) -> dict[str, Any]:
    echo = body.echoed()
    choices = []
    for answer in answers.in_order:
        logprobs = body.shown_logprobs(answer.logprobs or []) if body.logprobs else None
        read = form.read(answer.text)
        read.content = echo + read.content
        reason = finish_reason(answer.finish_reason, bool(read.calls), form.tools)
        choices.append(chat_choice(answer, message_of(read, CallIds(form.ids)), reason, logprobs, with_ids=body.return_token_ids))
    whole: dict[str, Any] = {"choices": choices, "usage": usage_of([answers])}
    if body.prompt_logprobs is not None and answers.output:
        whole["prompt_logprobs"] = prompt_logprobs(answers.output.prompt_logprobs, body.prompt_logprobs)
    return whole


def _of_prompt(body: ChatRequest, job: Job) -> dict[str, Any]:
    told: dict[str, Any] = {"prompt_token_ids": job.token_ids} if body.return_token_ids else {}
    return {**told, "prompt_text": job.text} if body.return_prompt_text else told

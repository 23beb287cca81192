"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmx_server.answer_form import AnswerForm, CallIds, finish_reason, message_of
from llmx_server.body import read_body
from llmx_server.chat_chunks import chat_events
from llmx_server.chat_job import open_chat
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.frames import Frames
from llmx_server.generation import Answers, collect
from llmx_server.protocol.api_fields import CHAT
from llmx_server.protocol.chat import ChatRequest, chat_choice
from llmx_server.protocol.extra_fields import warning_header
from llmx_server.protocol.logprobs import prompt_logprobs
from llmx_server.protocol.usage import usage_of
from llmx_server.schema import json_body
from llmx_server.serving import serving_of
from llmx_server.sse import EventStream

__all__ = ["router"]

router = APIRouter()


@router.post(CHAT, openapi_extra=json_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    serving = serving_of(request)
    serving.check_generates()
    body = await read_body(request, ChatRequest)
    chat = await open_chat(serving, body, "chat.completion.chunk" if body.stream else "chat.completion")
    headers = warning_header(chat.phrases)
    if body.stream:
        frames = Frames(chat.head, with_usage=body.usage_in_stream()[0])
        return EventStream(chat_events(serving, body, chat.job, chat.form, frames, chat.beside), headers)
    answers = (await until_disconnect(request.receive, collect(serving, [chat.job])))[0]
    return JsonResponse({**chat.head, **_whole(body, answers, chat.form), **chat.beside}, headers=headers)


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

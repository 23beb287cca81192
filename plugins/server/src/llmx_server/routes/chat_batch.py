"""POST /v1/chat/completions/batch: one choice for each of several conversations."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from llmx_server.chat_answers import choices_of
from llmx_server.chat_job import open_chat
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.generation import collect
from llmx_server.protocol.chat_batch import ChatBatchRequest
from llmx_server.protocol.extra_fields import warning_header
from llmx_server.protocol.usage import usage_of
from llmx_server.routing import Router
from llmx_server.served_models import open_body

__all__ = ["router"]

router = Router()


@router.post("/v1/chat/completions/batch", body=ChatBatchRequest)
async def create_chat_batch(request: Request) -> Response:
    """Answer all conversations at once; choice i is for conversation i. One that is wrong fails all, before any runs."""
    serving, body = await open_body(request, ChatBatchRequest)
    serving.check_generates()
    bodies = body.conversations()
    chats = [await open_chat(serving, one, "chat.completion") for one in bodies]
    jobs = [replace(chat.job, index=index) for index, chat in enumerate(chats)]
    answers = await until_disconnect(request.receive, collect(serving, jobs))
    choices = []
    for index, (one, chat, answer) in enumerate(zip(bodies, chats, answers, strict=True)):
        choices += [{**choice, "index": index, **chat.beside} for choice in choices_of(one, answer, chat.form)]
    headers = warning_header(dict.fromkeys(phrase for chat in chats for phrase in chat.phrases))
    return JsonResponse({**chats[0].head, "choices": choices, "usage": usage_of(answers)}, headers=headers)

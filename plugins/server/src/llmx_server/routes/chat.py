"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from llmx_server.chat_answers import whole_of
from llmx_server.chat_chunks import chat_events
from llmx_server.chat_job import open_chat
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.frames import Frames
from llmx_server.generation import collect
from llmx_server.protocol.api_fields import CHAT
from llmx_server.protocol.chat import ChatRequest
from llmx_server.protocol.extra_fields import warning_header
from llmx_server.routing import Router
from llmx_server.served_models import open_body
from llmx_server.sse import EventStream

__all__ = ["router"]

router = Router()


@router.post(CHAT, body=ChatRequest)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    serving, body = await open_body(request, ChatRequest)
    serving.check_generates()
    chat = await open_chat(serving, body, "chat.completion.chunk" if body.stream else "chat.completion")
    headers = warning_header(chat.phrases)
    if body.stream:
        frames = Frames(chat.head, with_usage=body.usage_in_stream()[0])
        return EventStream(chat_events(serving, body, chat.job, chat.form, frames, chat.beside), headers)
    answers = (await until_disconnect(request.receive, collect(serving, [chat.job])))[0]
    return JsonResponse({**chat.head, **whole_of(body, answers, chat.form), **chat.beside}, headers=headers)

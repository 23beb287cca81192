"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx_server.answer_form import CallIds
from llmx_server.anthropic_events import error_event, message_events
from llmx_server.chat_forms import ChatForms
from llmx_server.chat_job import chat_job
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.generation import collect
from llmx_server.protocol.anthropic import MessagesRequest, content_blocks, stop_of, usage_counts
from llmx_server.protocol.chat import ChatRequest
from llmx_server.protocol.extra_fields import warning_header
from llmx_server.protocol.usage import response_head
from llmx_server.routing import Router
from llmx_server.served_models import open_body
from llmx_server.sse import EventStream

__all__ = ["router"]

router = Router()


@router.post("/v1/messages", body=MessagesRequest)
async def create_message(request: Request) -> Response:
    """Answer a conversation, Anthropic's way."""
    serving, body = await open_body(request, MessagesRequest)
    serving.check_generates()
    model = serving.model_name(body.model)
    chat, unlimited = _limited(body.chat(), serving.forms)
    job, form, phrases = await chat_job(serving, chat)
    headers = warning_header([*body.without_effect(), *unlimited, *phrases])
    head: dict[str, Any] = {"id": response_head("msg", "", model, "")["id"], "type": "message", "role": "assistant", "model": model}
    if body.stream:
        return EventStream(message_events(serving, job, form, head), headers, failed=error_event, end=b"")
    answers = (await until_disconnect(request.receive, collect(serving, [job])))[0]
    answer = answers.by_index[0]
    read = form.read(answer.text)
    reason, stop = stop_of(answer.finish_reason, answer.stop_reason, bool(read.calls))
    counts = usage_counts(answers.prompt_tokens, answers.cached_tokens, answers.completion_tokens)
    whole = {**head, "content": content_blocks(read, CallIds("anthropic")), "stop_reason": reason, "stop_sequence": stop, "usage": counts}
    return JsonResponse(whole, headers=headers)


def _limited(chat: ChatRequest, forms: ChatForms) -> tuple[ChatRequest, list[str]]:
    """Without its thinking budget where reasoning cannot be ended: Anthropic's clients may send one to any model."""
    if chat.thinking_token_budget is None or forms.ends_reasoning:
        return chat, []
    return chat.model_copy(update={"thinking_token_budget": None}), ["thinking.budget_tokens (it is not known how this model ends its reasoning)"]


@router.post("/v1/messages/count_tokens", body=MessagesRequest)
async def count_tokens(request: Request) -> Response:
    """Tokens of the prompt that a message request would make."""
    serving, body = await open_body(request, MessagesRequest)
    serving.model_name(body.model)
    job, _, _ = await chat_job(serving, body.chat(counting=True))
    return JsonResponse({"input_tokens": len(job.token_ids)}, headers=warning_header(body.without_effect()))

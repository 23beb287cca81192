"""POST /v1/responses, and what can be done with one later: fetch, follow, cancel, delete."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx.errors import RequestError
from llmx_server.body import shorten
from llmx_server.caller import caller
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import JsonResponse
from llmx_server.protocol.api_fields import RESPONSES
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.pages import page_of
from llmx_server.protocol.response_input import chat_messages, input_items
from llmx_server.protocol.responses import ResponsesRequest
from llmx_server.response_job import response_job
from llmx_server.response_runs import ResponseRun
from llmx_server.response_store import Record, ResponseStore
from llmx_server.routing import Router
from llmx_server.served_models import open_body
from llmx_server.sse import EventStream

__all__ = ["router"]

router = Router()

_MAX_PAGE = 100  # OpenAI's limit of one page of input items


@router.post(RESPONSES, body=ResponsesRequest)
async def create_response(request: Request) -> Response:
    """Answer an input, whole, streamed or in the background."""
    serving, body = await open_body(request, ResponsesRequest)
    serving.check_generates()
    store = _store_of(request)
    model = serving.model_name(body.model)
    body.check()
    phrases = [*check_extra(RESPONSES, body.model_extra), *body.without_effect()]
    keeps = _keeps(body, store)
    items, messages = _conversation(body, store)
    chat = body.chat(messages)
    chat.head_fields()
    job, form, more = await response_job(serving, body, messages)
    headers = warning_header([*phrases, *chat.without_effect(), *more])
    if body.background:  # what is refused later would be told in the response only
        caller().check_limits()
    run = ResponseRun.start(serving, body, model, job, form, items, store if keeps else None)
    if body.background:
        run.in_background()
        if body.stream:
            return EventStream(run.record.follow(0), headers, end=b"")
        return JsonResponse(run.record.response, headers=headers)
    if body.stream:
        return EventStream(run.streamed(), headers, end=b"")
    return JsonResponse(await until_disconnect(request.receive, run.whole()), headers=headers)


@router.post("/v1/responses/input_tokens", body=ResponsesRequest)
async def count_input_tokens(request: Request) -> Response:
    """Tokens of the prompt that a request would make."""
    serving, body = await open_body(request, ResponsesRequest)
    serving.check_generates()
    store = _store_of(request)
    serving.model_name(body.model)
    body.check()
    phrases = check_extra(RESPONSES, body.model_extra)
    job, _, more = await response_job(serving, body, _conversation(body, store)[1])
    return JsonResponse({"object": "response.input_tokens", "input_tokens": len(job.token_ids)}, headers=warning_header([*phrases, *more]))


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    """A response as it stands; with stream=true its events, after number starting_after."""
    record = _store_of(request).get(response_id, caller())
    after = request.query_params.get("starting_after")
    if request.query_params.get("stream", "").lower() not in ("true", "1"):
        if after is not None:
            raise RequestError("starting_after is set without stream=true: only events are numbered", field="starting_after")
        return JsonResponse(record.response)
    if not record.events:
        message = "stream is true, but this response was not made in the background: its events are not kept, fetch it without stream"
        raise RequestError(message, field="stream")
    return EventStream(record.follow(0 if after is None else _event_number(after) + 1), end=b"")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a response; one that runs is cancelled."""
    store = _store_of(request)
    record = store.get(response_id, caller())
    await _cancel(record)
    store.drop(record)
    return JsonResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Stop a background response; what has ended stays as it is."""
    record = _store_of(request).get(response_id, caller())
    if not record.response["background"]:
        message = f"response {shorten(response_id)} was not made in the background: close its connection to stop it"
        raise RequestError(message, field="response_id")
    await _cancel(record)
    return JsonResponse(record.response)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    """The conversation that a response answers, the latest item first unless order is asc."""
    items = [_shown(item) for item in _store_of(request).get(response_id, caller()).items]
    return JsonResponse(page_of(items, request.query_params, most=_MAX_PAGE, default=20))


def _store_of(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


def _keeps(body: ResponsesRequest, store: ResponseStore) -> bool:
    """Whether the response is to be kept. Raises RequestError when it would have to be and this server keeps none."""
    if not store.keeps and (body.store or body.background):
        name = "background" if body.background else "store"
        raise RequestError(f"{name} is true, but this server keeps no responses: start it with --response-store-bytes above 0", field=name)
    return store.keeps and body.store is not False


def _conversation(body: ResponsesRequest, store: ResponseStore) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(all items, the chat messages that they are): those of previous_response_id with its answer, then the input."""
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        previous = store.get(body.previous_response_id, caller(), "previous_response_id")
        if previous.response["status"] not in ("completed", "incomplete"):
            message = f"previous_response_id names a response that is {previous.response['status']}: it must be completed or incomplete"
            raise RequestError(message, field="previous_response_id")
        earlier = [*previous.items, *previous.response["output"]]
    items = [*earlier, *input_items(body.input)]
    if not items:
        raise RequestError("input is empty: send at least one item", field="input")
    return items, chat_messages(items, len(earlier))


async def _cancel(record: Record) -> None:
    if record.task is not None and not record.ended:
        record.task.cancel()
        await asyncio.wait((record.task,))


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """An item with its content as parts, as OpenAI lists it."""
    if item["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        item = {**item, "content": [{"type": kind, "text": item["content"]} | ({"annotations": []} if kind == "output_text" else {})]}
    return {"status": "completed", **item}


def _event_number(text: str) -> int:
    """starting_after of the query. Raises RequestError."""
    if not text.isdecimal() or len(text) > 9:
        raise RequestError(f"starting_after is {shorten(text)}: it must be the sequence_number of an event", field="starting_after")
    return int(text)

"""/v1/batches: create, list, show, cancel."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx_server.body import read_body
from llmx_server.caller import caller
from llmx_server.errors import JsonResponse
from llmx_server.protocol.batches import BatchRequest
from llmx_server.protocol.extra_fields import warning_header
from llmx_server.protocol.pages import page_of
from llmx_server.routes.files import batches_of
from llmx_server.routing import Router
from llmx_server.served_models import models_of

__all__ = ["router"]

router = Router()

_MOST, _DEFAULT = 100, 20  # batches in one page


@router.post("/v1/batches", body=BatchRequest)
async def create_batch(request: Request) -> Response:
    """Answer a file of requests, when there is room for them."""
    batches = batches_of(request)
    models_of(request).host.check_ready()
    body = await read_body(request, BatchRequest)
    body.check()
    headers = warning_header(f"{name[:40]} (unknown)" for name in body.model_extra or {})
    made = batches.create(body.endpoint, body.input_file_id, body.metadata, body.output_lives_s, caller())
    return JsonResponse(_shown(made), headers=headers)


@router.get("/v1/batches")
async def list_batches(request: Request) -> Response:
    """The batches, newest first."""
    found = [_shown(one) for one in batches_of(request).all(caller())]
    return JsonResponse(page_of(found, request.query_params, most=_MOST, default=_DEFAULT))


@router.get("/v1/batches/{batch_id}")
async def show_batch(request: Request, batch_id: str) -> Response:
    """One batch as it stands."""
    return JsonResponse(_shown(batches_of(request).get(batch_id, caller())))


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """Stop a batch; it is cancelled a moment later, with what was answered by then."""
    return JsonResponse(_shown(batches_of(request).cancel(batch_id, caller())))


def _shown(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in ("output_expires_after", "owner")}

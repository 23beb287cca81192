"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmx_server.errors import JsonResponse
from llmx_server.serving import Serving, serving_of

__all__ = ["router"]

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """All names under which a model is served."""
    serving = serving_of(request)
    serving.check_ready()
    return JsonResponse({"object": "list", "data": [_model(serving, name) for name in serving.model_names]})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    """One of them; the name may hold slashes."""
    serving = serving_of(request)
    serving.check_ready()
    return JsonResponse(_model(serving, serving.model_name(name)))


def _model(serving: Serving, name: str) -> dict[str, Any]:
    info = serving.engine.info
    return {
        "id": name,
        "object": "model",
        "created": serving.started,
        "owned_by": "llmx",
        "root": info.name,
        "parent": None,
        "max_model_len": info.max_model_len,
    }

"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx_server.errors import JsonResponse
from llmx_server.routing import Router
from llmx_server.served_models import models_of
from llmx_server.serving import Serving

__all__ = ["router"]

router = Router()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """All names under which models are served, those of LoRA adapters too."""
    models = models_of(request)
    models.host.check_ready()
    data = [_model(serving, name) for serving in models for name in serving.model_names]
    data += [_model(serving.adapted(name), name) for serving in models for name in serving.adapters]
    return JsonResponse({"object": "list", "data": data})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    """One of them; the name may hold slashes."""
    models = models_of(request)
    models.host.check_ready()
    return JsonResponse(_model(models.find(name), name))


def _model(serving: Serving, name: str) -> dict[str, Any]:
    info = serving.engine.info
    return {
        "id": name,
        "object": "model",
        "created": serving.host.started,
        "owned_by": "llmx",
        "root": serving.adapters[name]["path"] if serving.lora else info.name,
        "parent": serving.base.model_names[0] if serving.base else None,
        "max_model_len": info.max_model_len,
    }

"""GET /health (also as /ping), /ready, /version, /metrics and /engine/state."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmx.engine.outputs import EngineStats
from llmx.errors import EngineDead
from llmx_server.engine_state import engine_state
from llmx_server.errors import RETRY_AFTER_S, JsonResponse
from llmx_server.metrics import CONTENT_TYPE_LATEST
from llmx_server.serving import Serving, serving_of
from llmx_server.version import version

__all__ = ["router"]

router = APIRouter()

_WHY = {"loading": "the model is still loading", "draining": "the server is shutting down: running requests may finish, new ones are refused"}


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 while the engine works, also when it is busy; 503 while it loads, shuts down, hangs or is dead."""
    serving = serving_of(request)
    if serving.phase != "ready":
        return _unavailable(serving.phase, _WHY[serving.phase])
    ok, reason = await serving.engine.health()
    return JsonResponse({"status": "ok", "reason": reason}) if ok else _unavailable("dead", reason)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 when new requests are taken; 503 while loading, shutting down or without an engine."""
    serving = serving_of(request)
    if serving.phase != "ready":
        return _unavailable(serving.phase, _WHY[serving.phase])
    ok, reason = await serving.engine.health()
    return JsonResponse({"status": "ready"}) if ok else _unavailable("dead", reason)


@router.get("/version")
async def show_version() -> Response:
    """The version of this server."""
    return JsonResponse({"version": version()})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics as text."""
    serving = serving_of(request)
    return Response(serving.metrics.render(await _stats(serving)), headers={"content-type": CONTENT_TYPE_LATEST})


@router.get("/engine/state")
async def state(request: Request) -> Response:
    """What the engine does now, as JSON, every KV block included."""
    serving = serving_of(request)
    return JsonResponse(engine_state(serving, await _stats(serving, kv_map=True)), headers={"cache-control": "no-store"})


async def _stats(serving: Serving, *, kv_map: bool = False) -> EngineStats | None:
    """None while the engine loads or is dead: what the server itself has seen is still worth a look; /health tells of the engine."""
    if serving.phase == "loading":
        return None
    try:
        return await serving.engine.stats(kv_map=kv_map)
    except EngineDead:
        return None


def _unavailable(status: str, reason: str) -> Response:
    return JsonResponse({"status": status, "reason": reason}, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})

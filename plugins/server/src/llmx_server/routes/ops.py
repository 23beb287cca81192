"""GET /health (also as /ping), /ready, /version, /metrics and /engine/state."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmx.engine.outputs import EngineStats
from llmx.errors import EngineDead
from llmx_server.engine_state import engine_state
from llmx_server.errors import RETRY_AFTER_S, JsonResponse
from llmx_server.metrics import CONTENT_TYPE_LATEST
from llmx_server.routes import adapters, admin, steering
from llmx_server.routing import Router
from llmx_server.served_models import models_of
from llmx_server.serving import Serving
from llmx_server.version import version

__all__ = ["router"]

router = Router()
router.routes += admin.router.routes + steering.router.routes + adapters.router.routes

_STATES = {"asleep": "asleep", "idle": "unloaded, until a request comes"}
_WHY = {"loading": "the model is still loading", "draining": "the server is shutting down: running requests may finish, new ones are refused"}


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 while an engine works, also when it is busy; 503 while they load, the server shuts down, or none works. ?model= asks for one alone."""
    return await _health(request, "ok")


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 when new requests are taken, by one model at least; 503 while loading, shutting down, paused or without an engine. ?model= asks for one alone."""
    return await _health(request, "ready")


@router.get("/version")
async def show_version(request: Request) -> Response:
    """The version of this server."""
    return JsonResponse({"version": version()})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics as text."""
    models = models_of(request)
    for serving in models:
        serving.metrics.counted(await _stats(serving))
    return Response(models.default.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


@router.get("/engine/state")
async def state(request: Request) -> Response:
    """What an engine does now, as JSON, every KV block included. ?model= says which; by default the first."""
    models = models_of(request)
    loading = models.host.phase == "loading"  # then no names are known
    serving = models.default if loading else models.find(request.query_params.get("model"))
    body = engine_state(serving, [] if loading else models.names, await _stats(serving, kv_map=True))
    return JsonResponse(body, headers={"cache-control": "no-store"})


async def _stats(serving: Serving, *, kv_map: bool = False) -> EngineStats | None:
    """None while the engine loads or is dead: what the server itself has seen is still worth a look; /health tells of the engine."""
    if serving.phase == "loading":
        return None
    try:
        return await serving.engine.stats(kv_map=kv_map)
    except EngineDead:
        return None


async def _health(request: Request, fine: str) -> Response:
    """One line for a server of one model. Of several each has its own, and one that works is enough: a dead one is not to take the others down with it."""
    models = models_of(request)
    phase = models.host.phase
    if phase != "ready":
        return _unavailable(phase, _WHY[phase])
    name = request.query_params.get("model")
    asked = [models.find(name)] if name else list(models)
    found = [(True, "") if serving.residence != "loaded" else await serving.engine.health() for serving in asked]
    paused = fine == "ready" and all(serving.residence != "loaded" or serving.engine.steering.paused for serving in asked)
    if paused and any(serving.residence == "loaded" for serving in asked):
        return _unavailable("paused", "an administrator paused the engine: requests wait until POST /resume")
    states = {one.model_names[0]: _STATES.get(one.residence, "ok") if ok else reason for one, (ok, reason) in zip(asked, found, strict=True)}
    each: dict[str, Any] = {"models": states} if len(found) > 1 else {}
    warnings = [line for one in asked if one.residence == "loaded" for line in one.engine.info.warnings]
    each |= {"detail": list(dict.fromkeys(warnings))} if warnings else {}
    why = "; ".join(reason for ok, reason in found if not ok)
    if not any(ok for ok, _ in found):
        return _unavailable("dead", why, each)
    return JsonResponse({"status": "degraded" if why else fine, "reason": why or "ok", **each})


def _unavailable(status: str, reason: str, each: dict[str, Any] | None = None) -> Response:
    return JsonResponse({"status": status, "reason": reason, **(each or {})}, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})

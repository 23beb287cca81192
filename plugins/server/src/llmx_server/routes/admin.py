"""Models at run time: /v1/admin/models with load and unload, and sleep and wake under the names that clients of such servers know.

They need the scope admin where keys are in use. No page of another origin may ask for them.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from llmx.errors import ConfigError, ModelError, PlatformError, RequestError
from llmx_server.body import BodyModel, read_body, shorten
from llmx_server.errors import JsonResponse
from llmx_server.routing import Router
from llmx_server.served_models import ServedModels, models_of
from llmx_server.serving import Serving
from llmx_server.socket_guard import same_origin

__all__ = ["LoadRequest", "UnloadRequest", "admin_of", "asked", "router"]

router = Router()


class LoadRequest(BodyModel):
    """A model to serve from now on; every further field is an option of it, as in the list `models` of a configuration file."""

    model: str


class UnloadRequest(BodyModel):
    """A model to serve no more. timeout: seconds that its running requests may still take."""

    model_config = ConfigDict(extra="forbid")

    model: str
    timeout: float = 0.0


@router.get("/v1/admin/models")
async def list_all(request: Request) -> Response:
    """Every model with its state and its running requests."""
    models = admin_of(request)
    return JsonResponse({"object": "list", "data": [_shown(serving) for serving in models]})


@router.post("/v1/admin/models/load", body=LoadRequest)
async def load(request: Request) -> Response:
    """Load a model; the answer comes when it takes requests. Nothing is fetched from the hub."""
    models = admin_of(request)
    body = await read_body(request, LoadRequest)
    known = next((serving for serving in models if body.model in serving.model_names), None)
    if known is not None and not body.model_extra:
        await models.rouse(known)  # one that rests
        return JsonResponse(_shown(known))
    try:
        return JsonResponse(_shown(await models.load({"model": body.model, **(body.model_extra or {})})))
    except (ConfigError, ModelError, PlatformError) as error:
        raise RequestError(f"the model cannot be loaded: {error}", field=getattr(error, "field", None) or "model") from error


@router.post("/v1/admin/models/unload", body=UnloadRequest)
async def unload(request: Request) -> Response:
    """Serve a model no more; its memory is free when the answer comes."""
    models = admin_of(request)
    body = await read_body(request, UnloadRequest)
    serving = models.find(body.model)
    await models.unload(serving, wait_s=body.timeout)
    return JsonResponse({"id": serving.model_names[0], "object": "model", "unloaded": True})


@router.post("/sleep")
async def sleep(request: Request) -> Response:
    """End the engine processes, of all models or of ?model=: weights and KV cache are freed. ?mode=abort ends what runs, wait lets it end."""
    models = admin_of(request)
    level, mode = request.query_params.get("level", "1"), request.query_params.get("mode", "abort")
    if level not in ("1", "2"):
        raise RequestError(f"level is {shorten(level)}: it must be 1 or 2, which both end the engine process; 0 is not supported", field="level")
    if mode not in ("abort", "wait"):
        raise RequestError(f"mode is {shorten(mode)}: it must be abort or wait; what runs cannot be kept without its engine", field="mode")
    for serving in asked(request, models):
        await models.rest(serving, "asleep", wait_s=models.config.server.drain_timeout_s if mode == "wait" else 0.0)
    return JsonResponse({"status": "sleeping", "level": int(level)})


@router.post("/wake_up")
async def wake_up(request: Request) -> Response:
    """Start the engine processes again, of all models or of ?model=; the answer comes when they take requests."""
    models = admin_of(request)
    if "tags" in request.query_params:
        raise RequestError("tags is set: weights and KV cache come back together, leave it out", field="tags")
    for serving in asked(request, models):
        await models.rouse(serving)
    return JsonResponse({"status": "awake"})


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> Response:
    """Whether all models, or ?model=, are asleep."""
    models = admin_of(request)
    return JsonResponse({"is_sleeping": all(serving.residence == "asleep" for serving in asked(request, models))})


def admin_of(request: Request) -> ServedModels:
    """The models. Raises NotReady, and RequestError for a page of another origin: a browser sends what any page asks for."""
    origin = request.headers.get("origin")
    if origin is not None and not same_origin(origin.encode(), request.headers.get("host", "").encode()):
        raise RequestError(f"Origin is {shorten(origin)}, which is not this server: admin routes are not for other pages", field="Origin")
    models = models_of(request)
    models.host.check_ready()
    return models


def asked(request: Request, models: ServedModels) -> list[Serving]:
    """The model that ?model= names, or all. Raises ModelNotFound."""
    name = request.query_params.get("model")
    return [models.find(name)] if name else list(models)


def _shown(serving: Serving) -> dict[str, Any]:
    state = {"loaded": "loaded", "asleep": "asleep", "idle": "unloaded"}[serving.residence]
    running = serving.engine.num_running if serving.residence == "loaded" else 0
    return {"id": serving.model_names[0], "object": "model", "names": list(serving.model_names), "state": state, "running": running}

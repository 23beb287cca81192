"""Engines at work, for administrators: /pause, /resume and /is_paused, /reset_prefix_cache, /start_profile and /stop_profile.

All take ?model=; without it they are for every model that is loaded.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from llmx.engine.steering import PAUSE_MODES
from llmx.errors import RequestError
from llmx_server.body import shorten
from llmx_server.errors import JsonResponse, ModelAsleep, NotFound
from llmx_server.routes.admin import admin_of, asked
from llmx_server.routing import Router
from llmx_server.serving import Serving

__all__ = ["router"]

router = Router()


@router.post("/pause")
async def pause(request: Request) -> Response:
    """Start no more steps. ?mode=keep (the default) keeps the requests as they are, wait lets them end first, abort ends them. New ones wait."""
    mode = request.query_params.get("mode", "keep")
    if mode not in PAUSE_MODES:
        raise RequestError(f"mode is {shorten(mode)}: it must be one of {', '.join(PAUSE_MODES)}", field="mode")
    clear = _flag(request, "clear_cache")
    for serving in _loaded(request):
        await serving.engine.steering.pause(mode)
        if clear:
            await serving.engine.steering.reset_prefix_cache()
    return JsonResponse({"status": "paused", "mode": mode})


@router.post("/resume")
async def resume(request: Request) -> Response:
    """Go on after /pause."""
    for serving in _loaded(request):
        await serving.engine.steering.resume()
    return JsonResponse({"status": "running"})


@router.get("/is_paused")
async def is_paused(request: Request) -> Response:
    """Whether all loaded models, or ?model=, are paused."""
    found = [serving.engine.steering.paused for serving in _loaded(request)]
    return JsonResponse({"is_paused": bool(found) and all(found)})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forget every prompt start. Blocks that requests use stay until these end, and no other request finds them.

    With ?reset_running_requests=true the requests are computed again from their first token.
    """
    if _flag(request, "reset_external"):
        raise RequestError("reset_external is true: there is no cache outside the engine, leave it out", field="reset_external")
    anew = _flag(request, "reset_running_requests")
    done = [(one.model_names[0], await one.engine.steering.reset_prefix_cache(reset_running_requests=anew)) for one in _loaded(request)]
    return JsonResponse({"success": True, "models": [{"id": name, **facts} for name, facts in done]})


@router.post("/start_profile")
async def start_profile(request: Request) -> Response:
    """Record the steps and Python functions of the engine process. 409 where that is done already."""
    folder = _folder(request)
    for serving in _loaded(request):
        await serving.engine.steering.start_profile(folder)
    return JsonResponse({"status": "profiling", "folder": folder})


@router.post("/stop_profile")
async def stop_profile(request: Request) -> Response:
    """Write what was recorded into --profile-dir, two files for each model. 409 where nothing is being recorded."""
    _folder(request)
    done = [(one.model_names[0], await one.engine.steering.stop_profile()) for one in _loaded(request)]
    return JsonResponse({"status": "stopped", "models": [{"id": name, **facts} for name, facts in done]})


def _loaded(request: Request) -> list[Serving]:
    """The models that are meant. Raises ModelAsleep for one that is named and has no engine process."""
    found = asked(request, admin_of(request))
    if "model" in request.query_params and found[0].residence != "loaded":
        raise ModelAsleep(f"model {found[0].model_names[0]!r} has no engine process now: POST /wake_up starts it", field="model")
    return [serving for serving in found if serving.residence == "loaded"]


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise RequestError(f"{name} is {shorten(text)}: it must be true or false", field=name)
    return text.lower() == "true"


def _folder(request: Request) -> str:
    folder = admin_of(request).config.server.profile_dir
    if not folder:
        raise NotFound("profiling is off: start the server with --profile-dir FOLDER")
    return folder

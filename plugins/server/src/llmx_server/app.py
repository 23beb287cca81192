"""The ASGI application: routes, middleware and how exceptions are answered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from llmx.config import EngineConfig
from llmx.errors import LlmxError
from llmx_server.auth import ApiKeyGuard
from llmx_server.batches import start_batches
from llmx_server.callers import Callers
from llmx_server.chat_forms import ChatForms
from llmx_server.error_shapes import in_shape
from llmx_server.errors import JsonResponse, error_body, failure_body, failure_status
from llmx_server.keys import KeyRing
from llmx_server.metrics import Metrics
from llmx_server.request_id import RequestId
from llmx_server.response_store import ResponseStore
from llmx_server.routes import batches, chat, chat_batch, chat_socket, completions, files, invocations, messages, models, ops, responses, tokenize
from llmx_server.routes.pooled import router as pooled
from llmx_server.served_models import ServedModels
from llmx_server.serving import Host, Phase, Serving, serving_of
from llmx_server.socket_guard import SameOrigin
from llmx_server.version import version
from llmx_server.web import page

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["create_app", "unguarded"]

_log = logging.getLogger("llmx.server")


def create_app(engine: AsyncEngine, config: EngineConfig, *, others: Sequence[tuple[AsyncEngine, EngineConfig]] = (), phase: Phase = "ready") -> FastAPI:
    """The application for an engine, and for `others` beside it, each with its model. The settings of the server are those of `config`.

    With phase "loading" the engines may still be starting; lifecycle.serve sets it ready. The models that the routes use are `app.state.models`.
    """
    models = _served(engine, config, others, Host(phase))
    serving = models.default
    app = _routed(config.server.root_path)
    app.state.models = models
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]  # FastAPI's documented way
    app.state.responses = ResponseStore(config.server.response_store_bytes, config.server.response_max_age_s)
    keyed = config.server.api_keys or config.server.api_key_file
    callers = Callers(KeyRing(config.server.api_keys, config.server.api_key_file)) if keyed else None
    app.state.batches = start_batches(config, models.host, lambda: unguarded(app), callers) if config.server.files_dir else None
    if callers is not None:
        app.add_middleware(ApiKeyGuard, callers=callers, root_path=config.server.root_path, on_refused=serving.metrics.rejected)
    app.add_middleware(SameOrigin)
    app.add_middleware(RequestId)
    return app


def unguarded(app: FastAPI) -> FastAPI:
    """The same application without its middleware, for requests from inside: whoever causes them has shown a key already."""
    inner = _routed()
    inner.state = app.state
    return inner


def _served(engine: AsyncEngine, config: EngineConfig, others: Sequence[tuple[AsyncEngine, EngineConfig]], host: Host) -> ServedModels:
    first = Metrics()
    servings = [Serving(engine, config, first, ChatForms.of, host)]
    servings += [Serving(other, own, Metrics(beside=first), ChatForms.of, host) for other, own in others]
    models = ServedModels(servings, host)
    if host.phase == "ready":
        models.became_ready()
    return models


def _routed(root_path: str = "") -> FastAPI:
    # No page that loads scripts from elsewhere: /openapi.json alone describes the API.
    app = FastAPI(title="llmx", version=version(), docs_url=None, redoc_url=None, root_path=root_path)
    for module in (completions, chat, chat_batch, chat_socket, messages, responses, files, batches, invocations, models, tokenize, ops, page):
        app.include_router(module.router)
    app.include_router(pooled)
    app.add_exception_handler(LlmxError, _on_llmx_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_exception)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    # Read only when somebody asks: building the types of all answers takes as long as the rest of the start.
    from llmx_server.openapi.document import describe

    models: ServedModels = app.state.models
    names = [] if models.host.phase == "loading" else models.names
    if app.openapi_schema is None or app.openapi_schema["info"]["x-models"] != names:
        app.openapi_schema = describe(app, models, names)
    return app.openapi_schema


async def _on_llmx_error(request: Request, error: Exception) -> Response:
    status, headers = failure_status(error)
    body = failure_body(error)
    serving_of(request).metrics.refused(error, body["error"]["code"])
    if status >= 500:
        _log.warning("%s %s: %s", request.method, request.url.path, error)
    return JsonResponse(in_shape(request.url.path, status, body), status_code=status, headers=headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    body = error_body(message, code="not_found" if error.status_code == 404 else None)
    return JsonResponse(in_shape(request.url.path, error.status_code, body), status_code=error.status_code, headers=dict(error.headers or {}))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    # Nobody reads it; 499 is what access logs of proxies show for a client that went away.
    return Response(status_code=499)


async def _on_exception(request: Request, error: Exception) -> Response:
    return JsonResponse(in_shape(request.url.path, 500, failure_body(error)), status_code=500)

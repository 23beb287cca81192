"""The ASGI application: routes, middleware and how exceptions are answered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import ConfigError, LlmxError
from llmx_server.auth import ApiKeyGuard
from llmx_server.batches import start_batches
from llmx_server.callers import Callers
from llmx_server.chat_forms import ChatForms
from llmx_server.error_shapes import in_shape
from llmx_server.errors import JsonResponse, error_body, failure_body, failure_status
from llmx_server.keys import KeyRing
from llmx_server.metrics import Metrics
from llmx_server.origins import allow_origins, read_origins
from llmx_server.plugins import server_plugins
from llmx_server.request_id import RequestId
from llmx_server.response_store import ResponseStore
from llmx_server.routes import batches, chat, chat_batch, chat_socket, completions, files, invocations, messages, models, ops, responses, tokenize
from llmx_server.routes.pooled import router as pooled
from llmx_server.routing import HttpRoute
from llmx_server.served_models import ServedModels
from llmx_server.serving import Host, Phase, Serving, serving_of
from llmx_server.socket_guard import SameOrigin
from llmx_server.watching import Watched
from llmx_server.web import page

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["Application", "create_app", "unguarded"]

_log = logging.getLogger("llmx.server")


class Application(Starlette):
    """The server's routes. Requests that come with `root_path` in front are taken without it."""

    def __init__(self, routes: Sequence[BaseRoute], root_path: str) -> None:
        described = HttpRoute("/openapi.json", self._answer_openapi, ["GET"], shown=False)
        handlers = {LlmxError: _on_llmx_error, HTTPException: _on_http_exception, ClientDisconnect: _on_disconnect, Exception: _on_exception}
        super().__init__(routes=[*routes, described], exception_handlers=handlers)
        self._root_path = root_path
        self._openapi: dict[str, Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection."""
        if self._root_path:
            scope["root_path"] = self._root_path
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The document of /openapi.json; it is made again when other models are served."""
        # Read only when somebody asks: building the types of all answers takes as long as the rest of the start.
        from llmx_server.openapi.document import describe

        models: ServedModels = self.state.models
        names = [] if models.host.phase == "loading" else models.names
        if self._openapi is None or self._openapi["info"]["x-models"] != names:
            self._openapi = describe(self.routes, models, names)
        return self._openapi

    async def _answer_openapi(self, request: Request) -> Response:
        return JsonResponse(self.openapi())


def create_app(engine: AsyncEngine, config: EngineConfig, *, others: Sequence[tuple[AsyncEngine, EngineConfig]] = (), phase: Phase = "ready") -> Application:
    """The application for an engine, and for `others` beside it, each with its model. The settings of the server are those of `config`.

    With phase "loading" the engines may still be starting; lifecycle.serve sets it ready. The models that the routes use are `app.state.models`.
    """
    models = _served(engine, config, others, Host(phase))
    serving = models.default
    app = _routed(config.server.root_path)
    app.state.models = models
    plugins = server_plugins(config, app.routes)
    serving.metrics.watch(plugins)
    app.router.routes.extend(plugins.routes.routes)
    app.state.responses = ResponseStore(config.server.response_store_bytes, config.server.response_max_age_s)
    callers = _callers(config.server)
    app.state.callers = callers  # None: no key is asked for
    app.state.batches = start_batches(config, models.host, lambda: unguarded(app), callers) if config.server.files_dir else None
    if callers is not None:
        root, scopes = config.server.root_path, plugins.routes.scopes_of
        app.add_middleware(ApiKeyGuard, callers=callers, root_path=root, on_refused=serving.metrics.rejected, scopes=scopes)
    app.add_middleware(SameOrigin, allowed=read_origins(config.server.allowed_origins))
    if plugins.watchers is not None:
        app.add_middleware(Watched, watchers=plugins.watchers)
    app.add_middleware(RequestId)
    allow_origins(app, config.server.allowed_origins)
    return app


def unguarded(app: Application) -> Application:
    """The same application without its middleware, for requests from inside: whoever causes them has shown a key already."""
    inner = _routed()
    inner.state = app.state
    return inner


def _callers(config: ServerConfig) -> Callers | None:
    """None: no key is asked for. Raises ConfigError."""
    if config.api_keys or config.api_key_file:
        return Callers(KeyRing(config.api_keys, config.api_key_file), salted=config.cache_salt_per_key)
    if config.cache_salt_per_key:
        raise ConfigError("--cache-salt-per-key is set, but no keys are asked for: add --api-key or --api-key-file", field="server.cache_salt_per_key")
    return None


def _served(engine: AsyncEngine, config: EngineConfig, others: Sequence[tuple[AsyncEngine, EngineConfig]], host: Host) -> ServedModels:
    first = Metrics()
    servings = [Serving(engine, config, first, ChatForms.of, host)]
    servings += [Serving(other, own, Metrics(beside=first), ChatForms.of, host) for other, own in others]
    models = ServedModels(servings, host)
    if host.phase == "ready":
        models.became_ready()
    return models


def _routed(root_path: str = "") -> Application:
    routes = [route for module in (completions, chat, chat_batch, chat_socket, messages, responses, files, batches) for route in module.router.routes]
    routes += [route for module in (invocations, models, tokenize, ops, page) for route in module.router.routes]
    return Application([*routes, *pooled.routes], root_path)


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

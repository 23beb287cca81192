"""Router: routes by decorator. Starlette alone routes: handlers read and check bodies themselves, so FastAPI would only be read and never used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

__all__ = ["Handler", "HttpRoute", "Router"]

Handler = Callable[..., Awaitable[Response]]  # of the request, then of the path's parameters by name


class HttpRoute(Route):
    """A path with its handler; `body` is the model of its JSON body, if it has one. With shown=False /openapi.json leaves it out.

    summary: its line there; by default the handler's name.
    """

    def __init__(
        self, path: str, handler: Handler, methods: Collection[str], *, body: type[BaseModel] | None = None, shown: bool = True, summary: str = ""
    ) -> None:
        async def endpoint(request: Request) -> Response:
            return await handler(request, **request.path_params)

        super().__init__(path, endpoint, methods=list(methods), name=handler.__name__, include_in_schema=shown)
        self.methods = set(methods)  # Starlette adds HEAD to GET; here a path answers what it says
        self.handler, self.body, self.summary = handler, body, summary


class Router:
    """The routes of one module. `routes` is what the application takes."""

    def __init__(self) -> None:
        self.routes: list[BaseRoute] = []

    def add(self, path: str, handler: Handler, *methods: str, body: type[BaseModel] | None = None, shown: bool = True) -> None:
        """One more route."""
        self.routes.append(HttpRoute(path, handler, methods, body=body, shown=shown))

    def get(self, path: str) -> Callable[[Handler], Handler]:
        """GET `path`."""
        return self._route(path, "GET")

    def post(self, path: str, body: type[BaseModel] | None = None) -> Callable[[Handler], Handler]:
        """POST `path`; body: what its handler reads."""
        return self._route(path, "POST", body=body)

    def delete(self, path: str) -> Callable[[Handler], Handler]:
        """DELETE `path`."""
        return self._route(path, "DELETE")

    def websocket(self, path: str) -> Callable[[Callable[[WebSocket], Awaitable[None]]], Any]:
        """A WebSocket at `path`."""

        def added(handler: Callable[[WebSocket], Awaitable[None]]) -> Any:
            self.routes.append(WebSocketRoute(path, handler, name=getattr(handler, "__name__", path)))
            return handler

        return added

    def _route(self, path: str, method: str, body: type[BaseModel] | None = None) -> Callable[[Handler], Handler]:
        def added(handler: Handler) -> Handler:
            self.add(path, handler, method, body=body)
            return handler

        return added

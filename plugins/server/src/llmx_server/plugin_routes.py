"""Routes of plugins (the hook llmx_routes): checked against core's and each other's, guarded and answered like core's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, compile_path
from starlette.types import Message, Receive

from llmx.errors import PluginError
from llmx.hooks import RouteDef
from llmx_server.body import read_bytes
from llmx_server.errors import JsonResponse
from llmx_server.routing import Handler, HttpRoute
from llmx_server.scopes import scopes_of

__all__ = ["PluginRoutes"]

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_SCOPES = {**{name: frozenset({name}) for name in ("admin", "generate", "embed")}, "any": frozenset[str]()}


class PluginRoutes:
    """The routes of all plugins, from (plugin, route) of each. core: the routes that are there already.

    Raises PluginError for a route that cannot be, or that might take a request of another one.
    """

    def __init__(self, given: Iterable[tuple[str, RouteDef]], core: Sequence[BaseRoute]) -> None:
        taken = [(path, f"core's route {path}") for path in ("/openapi.json", *(getattr(route, "path", "") for route in core)) if path]
        self.routes: list[HttpRoute] = []
        self._scopes: list[tuple[re.Pattern[str], frozenset[str]]] = []
        for plugin, one in given:
            _check(plugin, one)
            whose = next((name for path, name in taken if _meet(path, one.path)), None)
            if whose is not None:
                why = f"its route {one.path} would share requests with {whose}: give it another path, or deny one plugin with --deny-plugin"
                raise PluginError(why, plugin=plugin)
            taken.append((one.path, f"the route {one.path} of plugin {plugin!r}"))
            self.routes.append(HttpRoute(one.path, _handler(one), one.methods, summary=one.summary))
            self._scopes.append((compile_path(one.path)[0], _SCOPES[one.scope]))

    def scopes_of(self, path: str) -> frozenset[str]:
        """The scopes that a key needs for this path (without the root path), be it core's or a plugin's."""
        for pattern, scopes in self._scopes:
            if pattern.match(path):
                return scopes
        return scopes_of(path)


def _check(plugin: str, one: RouteDef) -> None:
    wrong = None
    if not isinstance(one, RouteDef):
        wrong = f"llmx_routes gave {one!r}: it must be a RouteDef"
    elif not one.path.startswith("/"):
        wrong = f"its route {one.path!r} must begin with /"
    elif not one.methods or not set(one.methods) <= _METHODS:
        wrong = f"its route {one.path} has the methods {', '.join(one.methods) or 'none'}: they must be of {', '.join(sorted(_METHODS))}"
    elif one.scope not in _SCOPES:
        wrong = f"its route {one.path} asks for the scope {one.scope!r}: it must be one of {', '.join(_SCOPES)}"
    elif not inspect.iscoroutinefunction(one.endpoint):
        wrong = f"the endpoint of its route {one.path} must be an `async def`"
    if wrong is not None:
        raise PluginError(wrong, plugin=plugin)


def _meet(first: str, second: str) -> bool:
    """Whether some path fits both."""
    for one, other in zip_longest(first.split("/"), second.split("/")):
        if ":path}" in (one or "") + (other or ""):
            return True
        if one is None or other is None or (one != other and "{" not in one + other):
            return False
    return True


def _handler(one: RouteDef) -> Handler:
    async def plugin_route(request: Request, **parameters: str) -> Response:
        answer = await one.endpoint(Request(request.scope, _replayed(await read_bytes(request), request.receive)))
        return answer if isinstance(answer, Response) else JsonResponse(answer)

    return plugin_route


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read with the server's limit once more, and then what comes after it."""
    left = [body]

    async def replay() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replay

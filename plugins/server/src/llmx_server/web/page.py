"""GET / and /web/NAME: the files of the page, with a policy under which nothing but them can run or be loaded."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from llmx_server.routing import Router

__all__ = ["PAGE_PATHS", "router"]

_FILES = {
    "index.html": "text/html; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "base.css": "text/css; charset=utf-8",
    "chat.css": "text/css; charset=utf-8",
    "engine.css": "text/css; charset=utf-8",
    "answer.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "engine.js": "text/javascript; charset=utf-8",
    "main.js": "text/javascript; charset=utf-8",
    "markdown.js": "text/javascript; charset=utf-8",
    "settings.js": "text/javascript; charset=utf-8",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
# Exactly these paths need no API key.
PAGE_PATHS = frozenset({"/", *(f"/web/{name}" for name in _FILES if name != "index.html")})

router = Router()


async def page(request: Request) -> Response:
    """The page."""
    return _answer(request, "index.html")


async def _asset(request: Request) -> Response:
    return _answer(request, request.scope["path"].rpartition("/")[2])


router.add("/", page, "GET", "HEAD", shown=False)
for _path in sorted(PAGE_PATHS - {"/"}):
    router.add(_path, _asset, "GET", "HEAD", shown=False)


def _answer(request: Request, name: str) -> Response:
    data, tag = _read(name)
    headers = {**_HEADERS, "etag": tag, "content-type": _FILES[name]}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers)


@cache
def _read(name: str) -> tuple[bytes, str]:
    data = (files(__package__) / "static" / name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'

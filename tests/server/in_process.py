"""A server in the test's own process, without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fake_engine import FakeEngine
from starlette.types import ASGIApp

from llmx.config import EngineConfig, ServerConfig
from llmx_server import create_app


def http_of(app: ASGIApp) -> httpx.AsyncClient:
    """A client of an application; a fault of the server is its 500, as over a socket."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://test")


@asynccontextmanager
async def serving(engine: FakeEngine, **server: object) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with these settings; its `app` is the application."""
    app = create_app(engine, EngineConfig(server=ServerConfig(**server)))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://t") as client:
        client.app = app  # type: ignore[attr-defined]
        yield client

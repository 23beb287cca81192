"""Fixtures of the server tests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

# pytest runs with --import-mode=importlib, which puts no test folder on the path; fake_engine.py lies beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import FakeEngine  # noqa: E402
from in_process import http_of  # noqa: E402

from llmx.config import EngineConfig  # noqa: E402
from llmx_server import create_app  # noqa: E402


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, EngineConfig())
    async with http_of(app) as client:
        yield client

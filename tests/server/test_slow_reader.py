"""Clients that do not read their answer: cut off after a while, their request aborted, the others served. Real sockets, small buffers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import httpx
import pytest
from fake_engine import FakeEngine

from llmx.config import EngineConfig, ServerConfig
from llmx_server import serve
from llmx_server.listen import bind

TOKENS = 1200  # chunks of more than 200 bytes each: far more than the buffers on the way
WAIT_S = 30  # a hang guard


def run(test: Callable[[str, FakeEngine], Awaitable[None]], *, reader_timeout_s: float) -> FakeEngine:
    """One test against a server in this process whose sockets send from small buffers."""
    engine = FakeEngine(answer=lambda ids: "x" * TOKENS)
    engine.info.max_model_len = 10 * TOKENS

    async def main() -> None:
        sock = bind("127.0.0.1", 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ready = asyncio.Event()
        config = EngineConfig(server=ServerConfig(reader_timeout_s=reader_timeout_s, drain_timeout_s=0))
        serving = asyncio.create_task(serve(engine, config, sock=sock, on_ready=lambda url: ready.set()))
        await ready.wait()
        try:
            await asyncio.wait_for(test(f"127.0.0.1:{sock.getsockname()[1]}", engine), WAIT_S)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await serving

    asyncio.run(main())
    return engine


def ask(address: str) -> socket.socket:
    """A client that has asked for a stream and reads nothing of it."""
    host, _, port = address.partition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    data = json.dumps({"prompt": "a", "max_tokens": TOKENS, "stream": True}).encode()
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
    sock.setblocking(False)
    return sock


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_client_that_reads_nothing_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def test(address: str, engine: FakeEngine) -> None:
        with ask(address), ask(address):
            await until(lambda: len(engine.aborted) == 2)
            assert not engine.running
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"http://{address}/v1/completions", json={"prompt": "b", "max_tokens": 20})
                assert answer.json()["choices"][0]["text"] == "x" * 20

    engine = run(test, reader_timeout_s=0.3)
    assert engine.counts.generation_tokens < 2 * TOKENS  # its own stream waited for it
    assert caplog.text.count("has not read its answer for 0.3 s (--reader-timeout): cut off") == 2


def test_a_slow_client_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def test(address: str, engine: FakeEngine) -> None:
        data = b""
        with ask(address) as sock:
            while b"[DONE]" not in data:
                data += await asyncio.get_running_loop().sock_recv(sock, 8192)
                await asyncio.sleep(0.01)
        assert data.count(b'"finish_reason":"length"') == 1

    engine = run(test, reader_timeout_s=0.3)
    assert engine.aborted == [] and "cut off" not in caplog.text


def test_with_zero_nobody_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def test(address: str, engine: FakeEngine) -> None:
        with ask(address):
            await until(lambda: engine.counts.generation_tokens > 100)
            before = -1
            while before != engine.counts.generation_tokens:  # until it waits for its reader
                before = engine.counts.generation_tokens
                await asyncio.sleep(0.3)
            assert before < TOKENS and len(engine.running) == 1 and "cut off" not in caplog.text

    run(test, reader_timeout_s=0)

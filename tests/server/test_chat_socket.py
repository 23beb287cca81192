"""/v1/chat/ws over a real socket, with the package websockets as the client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from socket import socket as PlainSocket
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from llmx.config import EngineConfig, ServerConfig
from llmx_server import serve
from llmx_server.keys import new_key
from llmx_server.limits import Limits
from llmx_server.listen import bind

pytestmark = pytest.mark.anyio

HANG_S = 30
BODY = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}


@asynccontextmanager
async def served(engine: FakeEngine, *, send_buffer: int = 0, **server: Any) -> AsyncIterator[str]:
    """`llmx_server.serve` in this process; yields host:port. send_buffer: bytes that the system takes for a client that does not read."""
    sock = bind("127.0.0.1", 0)
    if send_buffer:
        sock.setsockopt(SOL_SOCKET, SO_SNDBUF, send_buffer)
    host = "{}:{}".format(*sock.getsockname())
    ready = asyncio.Event()
    config = EngineConfig(server=replace(ServerConfig(), **server))
    task = asyncio.create_task(serve(engine, config, sock=sock, on_ready=lambda url: ready.set()))
    try:
        await asyncio.wait_for(ready.wait(), HANG_S)
        yield host
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)  # serve handles it: the server drains and ends
        await asyncio.wait_for(task, HANG_S)


@asynccontextmanager
async def talk(host: str, **options: Any) -> AsyncIterator[ClientConnection]:
    async with asyncio.timeout(HANG_S), connect(f"ws://{host}/v1/chat/ws", proxy=None, **options) as socket:
        yield socket


async def told(socket: ClientConnection) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(await socket.recv())
    return value


async def answer(socket: ClientConnection, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All messages up to `done`."""
    await socket.send(json.dumps(body))
    messages = [await told(socket)]
    while messages[-1].get("type") != "done":
        messages.append(await told(socket))
    return messages


def without_ids(chunk: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chunk.items() if name not in ("id", "created")}


async def test_messages_are_the_chunks_of_the_http_route(engine: FakeEngine) -> None:
    body = {**BODY, "n": 2, "logprobs": True, "stream_options": {"include_usage": True}}
    async with served(engine) as host, talk(host) as socket, httpx.AsyncClient() as client:
        assert await told(socket) == {"type": "ready"}
        *chunks, done = await answer(socket, body)
        assert done == {"type": "done", "reason": "complete"}
        text = (await client.post(f"http://{host}/v1/chat/completions", json={**body, "stream": True})).text
        lines = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line and not line.endswith("[DONE]")]
        assert [without_ids(chunk) for chunk in chunks] == [without_ids(line) for line in lines]
        assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[-1]["usage"]["completion_tokens"] > 10
        again = await answer(socket, BODY)  # one connection, many answers
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in again[:-1]) == "hello world"


async def test_stop_ends_the_answer_in_the_engine(engine: FakeEngine) -> None:
    engine.answer, engine.delay_s, engine.info.max_model_len = lambda ids: "x" * 5000, 0.001, 10_000
    async with served(engine) as host, talk(host) as socket:
        await told(socket)
        await socket.send(json.dumps(BODY))
        while "choices" not in await told(socket):
            pass
        await socket.send('{"type": "stop"}')
        while (last := await told(socket)).get("type") != "done":
            pass
        assert last["reason"] == "stopped" and engine.aborted == engine.started_ids and not engine.running
        await socket.send('{"type": "stop"}')  # nothing runs: it may have crossed the end of an answer
        engine.answer = lambda ids: "short"
        assert (await answer(socket, BODY))[-1]["reason"] == "complete"


async def test_leaving_ends_the_answer_in_the_engine(engine: FakeEngine) -> None:
    engine.answer, engine.delay_s, engine.info.max_model_len = lambda ids: "x" * 5000, 0.001, 10_000
    async with served(engine) as host, talk(host) as socket:
        await told(socket)
        await socket.send(json.dumps(BODY))
        while not engine.running:
            await asyncio.sleep(0.01)
        await socket.close()
        async with asyncio.timeout(HANG_S):
            while engine.running:
                await asyncio.sleep(0.01)
        assert engine.aborted == engine.started_ids


async def test_a_client_that_does_not_read_is_cut_off(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.answer, engine.info.max_model_len = lambda ids: "x" * 3000, 10_000
    async with served(engine, send_buffer=4096, reader_timeout_s=0.5) as host:
        plain = PlainSocket()
        plain.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
        plain.setblocking(False)
        name, port = host.split(":")
        await asyncio.get_running_loop().sock_connect(plain, (name, int(port)))
        async with talk(host, sock=plain, max_queue=1) as client:
            await client.send(json.dumps(BODY))
            async with asyncio.timeout(HANG_S):
                while not engine.aborted or "has not read its answer for 0.5 s (--reader-timeout)" not in caplog.text:
                    await asyncio.sleep(0.02)
            assert not engine.running and engine.counts.generation_tokens < 3000
            client.transport.abort()


async def test_faults_are_told_and_the_connection_stays(engine: FakeEngine) -> None:
    faults = {
        "{": "valid JSON",
        "[]": "JSON object",
        '{"type": "dance"}': "'dance'",
    }
    bodies: list[tuple[dict[str, Any], int, str]] = [
        ({"messages": []}, 400, "messages"),
        ({**BODY, "stream": False}, 400, "stream is false"),
        ({**BODY, "temperature": -1}, 400, "temperature"),
        ({**BODY, "temperature": "hot"}, 400, "temperature"),
        ({**BODY, "model": "gone"}, 404, "gone"),
    ]
    async with served(engine) as host, talk(host) as socket, httpx.AsyncClient() as client:
        await told(socket)
        for text, words in faults.items():
            await socket.send(text)
            message = await told(socket)
            assert message["status"] == 400 and words in message["error"]["message"]
        await socket.send(b"{}")
        assert "binary" in (await told(socket))["error"]["message"]
        for body, status, words in bodies:
            error, done = await answer(socket, body)
            assert error["status"] == status and words in error["error"]["message"] and done == {"type": "done", "reason": "error"}
        warning = (await answer(socket, {**BODY, "colour": "red"}))[0]
        assert warning["type"] == "warning" and "colour" in warning["ignored"][0]
        engine.info.pooling = SimpleNamespace(classifies=False, tasks=("embed",))
        error, done = await answer(socket, BODY)
        assert "gives vectors, no text" in error["error"]["message"] and done["reason"] == "error"
        engine.info.pooling, engine.fail_at = None, 2
        *_, error, done = await answer(socket, BODY)
        assert error["status"] == 503 and error["retry_after"] > 0 and done["reason"] == "error"
        counted = (await client.get(f"http://{host}/metrics")).text
        assert 'llmx:request_rejections_total{model_name="fake-model",reason="model_not_found"} 1.0' in counted


async def test_one_answer_at_a_time(engine: FakeEngine) -> None:
    engine.gate = asyncio.Event()
    async with served(engine) as host, talk(host) as socket:
        await told(socket)
        await socket.send(json.dumps(BODY))
        await socket.send(json.dumps(BODY))
        messages = [await told(socket)]
        while "error" not in messages[-1]:
            messages.append(await told(socket))
        assert "an answer is being written" in messages[-1]["error"]["message"]
        engine.gate.set()
        while (last := await told(socket)).get("type") != "done":
            assert "error" not in last
        assert len(engine.started_ids) == 1


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer right"}, {"x-api-key": "right"}])
async def test_a_key_in_a_header(engine: FakeEngine, headers: dict[str, str]) -> None:
    async with served(engine, api_keys=("right",)) as host, talk(host, additional_headers=headers) as socket:
        assert await told(socket) == {"type": "ready"}
        assert (await answer(socket, BODY))[-1]["reason"] == "complete"
        with pytest.raises(InvalidStatus) as refused:
            async with talk(host, additional_headers={"x-api-key": "wrong"}):
                pass
        assert refused.value.response.status_code == 401 and b"invalid_api_key" in refused.value.response.body


async def test_a_key_in_the_first_message(engine: FakeEngine) -> None:
    async with served(engine, api_keys=("right",)) as host:
        async with talk(host) as socket:
            await socket.send('{"type": "auth", "api_key": "right"}')
            assert await told(socket) == {"type": "ready"}
            assert (await answer(socket, BODY))[-1]["reason"] == "complete"
        for first in ('{"type": "auth", "api_key": "wrong"}', '{"type": "auth"}', json.dumps(BODY), "right", "{", b"\xff"):
            async with talk(host) as socket:
                await socket.send(first)
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd and closed.value.rcvd.code == 4401
        assert len(engine.started_ids) == 1
        async with httpx.AsyncClient(headers={"x-api-key": "right"}) as client:
            counted = (await client.get(f"http://{host}/metrics")).text
            assert 'llmx:request_rejections_total{model_name="fake-model",reason="invalid_api_key"} 6.0' in counted
    async with served(engine) as host, talk(host) as socket:  # no key is asked for: one that is shown does no harm
        assert await told(socket) == {"type": "ready"}
        await socket.send('{"type": "auth", "api_key": "any"}')
        assert await told(socket) == {"type": "ready"}


@pytest.mark.parametrize("in_header", [True, False])
async def test_the_limits_of_a_key_hold_here_too(engine: FakeEngine, tmp_path: Path, in_header: bool) -> None:
    key, line = new_key("ann", ("generate",), Limits(rpm=2))
    (tmp_path / "keys").write_text(line + "\n")
    async with served(engine, api_key_file=str(tmp_path / "keys")) as host:
        async with talk(host, additional_headers={"authorization": f"Bearer {key}"} if in_header else {}) as socket:
            if not in_header:
                await socket.send(json.dumps({"type": "auth", "api_key": key}))
            assert await told(socket) == {"type": "ready"}
            for reason in ("complete", "complete", "error"):
                messages = await answer(socket, BODY)
                assert messages[-1]["reason"] == reason
            assert (messages[0]["status"], messages[0]["error"]["code"]) == (429, "rate_limit_exceeded") and 1 <= messages[0]["retry_after"] <= 60
        async with httpx.AsyncClient(headers={"x-api-key": key}) as client:  # the same count, whichever way the requests come
            assert (await client.post(f"http://{host}/v1/chat/completions", json=BODY)).status_code == 429


async def test_who_shows_no_key_is_not_waited_for(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx_server.socket_guard._FIRST_MESSAGE_S", 0.05)
    async with served(engine, api_keys=("right",)) as host, talk(host) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd and closed.value.rcvd.code == 4401


async def test_no_other_origin_may_open_it(engine: FakeEngine) -> None:
    async with served(engine) as host:
        async with talk(host, origin=f"http://{host}") as socket:
            assert await told(socket) == {"type": "ready"}
        port = host.rpartition(":")[2]
        for origin in ("http://elsewhere.example", f"http://localhost:{port}", "http://127.0.0.1", f"file://{host}", "null", f"http://{host}.example"):
            with pytest.raises(InvalidStatus) as refused:
                async with talk(host, origin=origin):
                    pass
            assert refused.value.response.status_code == 403 and b"origin_not_allowed" in refused.value.response.body


async def test_an_idle_connection_does_not_hold_up_the_end(engine: FakeEngine) -> None:
    """At SIGTERM the answer that runs may end; an idle connection is closed at once."""
    engine.answer, engine.gate = lambda ids: "last words", asyncio.Event()
    async with served(engine) as host, talk(host) as idle, talk(host) as busy:
        assert await told(idle) == await told(busy) == {"type": "ready"}
        await busy.send(json.dumps(BODY))
        while not engine.running:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            await idle.recv()
        assert closed.value.rcvd and closed.value.rcvd.code == 1001
        engine.gate.set()
        while (last := await told(busy)).get("type") != "done":
            assert "error" not in last
        with pytest.raises(ConnectionClosed):
            await busy.recv()

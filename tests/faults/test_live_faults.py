"""A server whose engine is killed, stopped, hangs, computes NaN or runs out of memory; over real sockets, under load."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from processes import HANG_S, Server, children, gauges, llmx, serve, until
from tests.faults.clients import Ending, body_of, read_stream
from tests.faults.kit import HANG, KILL, MEMORY, NAN, faulty

STEP_TIMEOUT_S = 1.0
ARGUMENTS = ("--platform", "faulty", "--num-blocks", "1200", "--max-model-len", "8k", "--log-level", "warning", "--recovery-timeout", "120")
OK = [5, 6, 7]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(*ARGUMENTS, "--max-num-seqs", "8", "--step-timeout", str(STEP_TIMEOUT_S), environ=faulty(tmp_path, step_s=0.01)) as running:
        yield running


def engine_of(server: Server) -> int:
    """The engine's process id."""
    (child,) = children(server.process)
    return child


def health(server: Server) -> int:
    return httpx.get(f"{server.url}/health", timeout=HANG_S).status_code


def arguments(pid: int) -> list[str]:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def gone(pid: int) -> bool:
    """True when a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def _break_under_load(server: Server, number: signal.Signals) -> tuple[list[Ending], list[Ending], httpx.Response, float]:
    """Streams that had tokens, streams that had none, a whole answer under way, when the signal was sent; after all have ended."""
    async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client:
        begun = [Ending() for _ in range(6)]
        tasks = [asyncio.create_task(read_stream(client, [20 + at], 3000, ending)) for at, ending in enumerate(begun)]
        while not all(ending.chunks > 2 for ending in begun):
            await asyncio.sleep(0.01)
        whole = asyncio.create_task(client.post("/v1/completions", json=body_of(OK, 40)))
        blocker = asyncio.create_task(client.post("/v1/completions", json=body_of(OK, 40)))
        while gauges(server.url)["llmx:num_requests_running"] < 8:  # the batch is full: who comes now waits
            await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(read_stream(client, [40 + at], 5)) for at in range(6)]
        while gauges(server.url)["llmx:num_requests_waiting"] < 6:
            await asyncio.sleep(0.01)
        os.kill(engine_of(server), number)
        sent = time.monotonic()
        ended = await asyncio.gather(*waiting)
        await asyncio.gather(*tasks)
        assert (await blocker).status_code == 200
        return begun, ended, await whole, sent


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_engine_killed_or_stopped_under_load(server: Server, number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    first = engine_of(server)
    seen: dict[str, float] = {}

    def watch() -> None:
        began = time.monotonic()
        seen["503 after"] = until(lambda: health(server) == 503)
        seen["200 after"] = seen["503 after"] + until(lambda: health(server) == 200)
        assert time.monotonic() >= began

    async def test() -> tuple[list[Ending], list[Ending], httpx.Response, float]:
        watching = asyncio.to_thread(watch)
        result, _ = await asyncio.gather(_break_under_load(server, number), watching)
        return result

    begun, waited, whole, sent = asyncio.run(test())
    for ending in begun:
        assert ending.error and ending.error["code"] == "engine_dead" and ending.error["type"] == "server_error"
        assert ending.done and ending.finish is None
    assert all(ending.finish == "length" and ending.error is None for ending in waited)
    assert whole.status_code == 200 and whole.json()["usage"]["completion_tokens"] == 40  # tokens had come, but none was shown
    limit = 2.0 if number == signal.SIGKILL else STEP_TIMEOUT_S + 2.0
    ended, served = max(ending.at for ending in begun) - sent, min(ending.at for ending in waited) - sent
    with capsys.disabled():
        print(f"\n{number.name}: begun streams ended after {ended:.2f} s, the next request was answered after {served:.2f} s")
    assert ended < 10 * limit and served < 10 * 10  # the figures that count are printed; these are hang guards
    assert gone(first) and engine_of(server) != first
    figures = gauges(server.url)
    assert figures["llmx:kv_cache_usage_perc"] == figures["llmx:num_requests_running"] == figures["llmx:num_requests_waiting"] == 0


def test_what_a_request_causes_in_the_engine(server: Server) -> None:
    """NaN ends its own request; a step that hangs or lacks memory ends the engine, and the request is sent to the next one."""

    async def beside(fault: int, **fields: object) -> tuple[Ending, httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client:
            other = asyncio.create_task(client.post("/v1/completions", json=body_of(OK, 30)))
            ending = await read_stream(client, [5, fault, 7], 20)
            return ending, await other

    alone = httpx.post(f"{server.url}/v1/completions", json=body_of(OK, 30, temperature=0), timeout=HANG_S).json()["choices"]
    ending, other = asyncio.run(beside(NAN))
    assert ending.error and ending.error["code"] == "generation_failed" and "NaN" in ending.error["message"]
    assert other.status_code == 200 and other.json()["usage"]["completion_tokens"] == 30
    whole = httpx.post(f"{server.url}/v1/completions", json=body_of([5, NAN, 7], 20), timeout=HANG_S)
    assert whole.status_code == 500 and whole.json()["error"]["type"] == "server_error"
    assert gauges(server.url)["llmx:kv_cache_usage_perc"] == 0
    for fault in (HANG, MEMORY):
        before = engine_of(server)
        ending, other = asyncio.run(beside(fault))
        assert ending.finish == "length" and other.status_code == 200
        assert engine_of(server) != before and gone(before)
    assert httpx.post(f"{server.url}/v1/completions", json=body_of(OK, 30, temperature=0), timeout=HANG_S).json()["choices"] == alone
    server.process.send_signal(signal.SIGTERM)
    code, log = server.end()
    assert code == 0 and "--step-timeout" in log and "MemoryError: injected" in log  # its traceback is in the log, not in an answer


def test_a_request_that_kills_every_engine_is_given_up(tmp_path: Path) -> None:
    with serve(*ARGUMENTS, environ=faulty(tmp_path, fuses=False)) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=body_of([KILL], 5), timeout=HANG_S)
        assert answer.status_code == 503 and answer.headers["retry-after"] and answer.json()["error"]["code"] == "engine_dead"
        assert httpx.post(f"{server.url}/v1/completions", json=body_of(OK, 5), timeout=HANG_S).status_code == 200


def test_a_long_prefill_is_not_a_hang(tmp_path: Path) -> None:
    step_s = 0.3 * STEP_TIMEOUT_S
    tokens = 16 * 12
    options = ("--max-num-batched-tokens", "16", "--step-timeout", str(STEP_TIMEOUT_S))
    with serve(*ARGUMENTS, *options, environ=faulty(tmp_path, step_s=step_s)) as server:
        engine, seen = engine_of(server), []

        async def test() -> httpx.Response:
            async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client:
                asked = asyncio.create_task(client.post("/v1/completions", json=body_of([9] * tokens, 1)))
                while not asked.done():
                    seen.append((await client.get("/health")).status_code)
                    await asyncio.sleep(0.1)
                return await asked

        assert asyncio.run(test()).status_code == 200
        assert len(seen) > 10 and set(seen) == {200} and engine_of(server) == engine


@pytest.mark.parametrize("state", ["stopped", "hanging", "loading"])
def test_no_engine_outlives_its_server(tmp_path: Path, state: str) -> None:
    environ = {**os.environ, **faulty(tmp_path, step_s=0.01, start="slow" if state == "loading" else "")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "llmx", "serve", "--port", "0", *ARGUMENTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ) as process:
        assert process.stdout is not None
        if state != "loading":
            url = next(line for line in process.stdout if line.startswith("ready")).split()[1]
        until(lambda: children(process))
        (engine,) = children(process)
        until(lambda: "llmx.engine.process" in arguments(engine))  # just forked, it still has its parent's
        if state == "hanging":
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{url}/v1/completions", json=body_of([HANG], 5), timeout=0.5)
        if state == "stopped":
            os.kill(engine, signal.SIGSTOP)
        sockets = Path(arguments(engine)[-4].removeprefix("ipc://")).parent
        process.kill()
        until(lambda: gone(engine))
        assert state == "loading" or not sockets.exists()


def test_second_signal_ends_at_once_even_with_a_stopped_engine(server: Server) -> None:
    engine = engine_of(server)
    os.kill(engine, signal.SIGSTOP)
    asked = time.monotonic()

    async def test() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client:
            request = asyncio.create_task(client.post("/v1/completions", json=body_of(OK, 5)))
            await asyncio.sleep(0.2)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(request, return_exceptions=True)

    asyncio.run(test())
    code, log = server.end()
    assert code == 0 and "Traceback" not in log and gone(engine)
    assert time.monotonic() - asked < 30  # the drain time, which it did not wait for


def test_a_full_disk_under_stdout_does_not_keep_it_from_serving(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "llmx", "serve", "--port", str(port), "--platform", "null", "--num-blocks", "600"]
    with open("/dev/full", "w") as full, subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: process.poll() is not None or listens(url) and httpx.get(f"{url}/ready", timeout=HANG_S).status_code == 200, HANG_S)
            assert httpx.post(f"{url}/v1/completions", json=body_of(OK, 2), timeout=HANG_S).status_code == 200
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    assert process.returncode == 0 and "No space left on device" in log and "Traceback" not in log


def listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/version", timeout=HANG_S)
    except httpx.ConnectError:
        return False
    return True


def test_memory_that_runs_out_while_loading_is_told_in_one_line(tmp_path: Path) -> None:
    result = llmx("serve", "--port", "0", *ARGUMENTS, environ={**faulty(tmp_path, start="memory")})
    assert result.returncode == 2 and "memory ran out" in result.stderr and "Traceback" not in result.stderr
    assert "--kv-cache-memory-bytes" in result.stderr

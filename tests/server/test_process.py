"""The server in a process of its own, over a real socket: the openai SDK, disconnects, signals, the port."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

SCRIPT = Path(__file__).with_name("fake_server.py")


@contextmanager
def server(*, drain_s: float = 5, tokens: int = 20, delay_s: float = 0.0, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running server: its URL and its process."""
    args = [sys.executable, str(SCRIPT), str(port), str(drain_s), str(tokens), str(delay_s)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            assert line and line[0] == "ready", process.stderr and process.stderr.read()
            yield line[1], process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str], timeout: float = 20) -> tuple[int, str]:
    """Exit code and the rest of what it printed."""
    out, err = process.communicate(timeout=timeout)
    assert "Traceback" not in err, err
    return process.returncode, out.strip()


def test_openai_sdk() -> None:
    with server() as (url, process):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["fake-model", "alias/with.dots"]
            assert client.models.retrieve("alias/with.dots").id == "alias/with.dots"
            done = client.completions.create(model="fake-model", prompt="x", max_tokens=5, logprobs=2)
            assert done.choices[0].text == "xxxxx" and done.choices[0].logprobs and done.usage and done.usage.completion_tokens == 5
            chat = client.chat.completions.create(model="fake-model", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2)
            assert chat.choices[0].message.content == "x" * 20 and chat._request_id
            with client.chat.completions.create(
                model="fake-model", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
            ) as stream:
                chunks = list(stream)
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "x" * 20
            assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 21
            with pytest.raises(openai.BadRequestError, match="temperature"):
                client.completions.create(model="fake-model", prompt="x", temperature=3)
            with pytest.raises(openai.NotFoundError, match="nope"):
                client.completions.create(model="nope", prompt="x")
        process.send_signal(signal.SIGTERM)
        assert finish(process) == (0, "aborted 0 closed True")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_aborts_its_request(stream: bool) -> None:
    async def leave(url: str) -> float:
        body = {"prompt": ["a", "b"], "max_tokens": 100_000, "stream": stream}
        async with httpx.AsyncClient() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5), client.stream("POST", f"{url}/v1/completions", json=body) as response:
                    async for _ in response.aiter_bytes():
                        pass
        async with httpx.AsyncClient() as client:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                text = (await client.get(f"{url}/metrics")).text
                if "llmx:request_failure_total" in text and 'reason="abort"} 2.0' in text:
                    return float(text.split("\nllmx:num_requests_running{")[1].split("\n")[0].split()[-1])
                await asyncio.sleep(0.02)
        raise AssertionError("the requests were not aborted")

    with server(tokens=200_000, delay_s=0.001) as (url, process):
        assert asyncio.run(leave(url)) == 0
        process.send_signal(signal.SIGTERM)
        assert finish(process) == (0, "aborted 2 closed True")


def stream_in_background(url: str, seen: list[str], tokens: int) -> threading.Thread:
    """A thread that reads a stream; what it gets, or how it broke, is put into `seen`."""

    def read() -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "a", "max_tokens": tokens, "stream": True}, timeout=30) as response:
                seen.extend(line for line in response.iter_lines() if line)
        except httpx.HTTPError as error:
            seen.append(f"broken: {type(error).__name__}")

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    return thread


def until_draining(url: str) -> None:
    """Waits until the server has taken its signal."""
    deadline = time.monotonic() + 10
    while httpx.get(f"{url}/ready").status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sigterm_lets_running_requests_finish() -> None:
    with server(tokens=200, delay_s=0.01) as (url, process):
        seen: list[str] = []
        thread = stream_in_background(url, seen, 200)
        process.send_signal(signal.SIGTERM)
        until_draining(url)
        for path, status in (("/health", 503), ("/ready", 503), ("/version", 200)):
            assert httpx.get(f"{url}{path}").status_code == status
        assert httpx.get(f"{url}/health").json()["status"] == "draining"
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503 and refused.headers["retry-after"] and "shutting down" in refused.json()["error"]["message"]
        thread.join(20)
        assert seen[-1] == "data: [DONE]" and len(seen) == 201
        assert finish(process) == (0, "aborted 0 closed True")


def test_drain_timeout_and_second_signal_cut_what_still_runs() -> None:
    for drain_s, signals in ((1, 1), (60, 2)):
        with server(tokens=200_000, delay_s=0.01, drain_s=drain_s) as (url, process):
            seen: list[str] = []
            thread = stream_in_background(url, seen, 100_000)
            start = time.monotonic()
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
            code, out = process.wait(20), process.stdout.read() if process.stdout else ""
            assert (code, out.strip()) == (0, "aborted 1 closed True")
            assert time.monotonic() - start < 15
            thread.join(20)
            if signals == 1:  # the client is told
                assert '"code":"engine_dead"' in seen[-2] and "--shutdown-timeout" in seen[-2] and seen[-1] == "data: [DONE]"


def test_loading_answers_503_and_a_failed_start_ends_the_process() -> None:
    port = free_port()
    args = [sys.executable, str(SCRIPT), str(port), "5", "5", "0", "the file is truncated"]
    result = subprocess.run(args, capture_output=True, text=True, timeout=30)
    assert result.returncode == 3
    assert result.stdout.splitlines() == ["error: /m.gguf: the file is truncated", "aborted 0 closed True"]


def test_port_in_use_is_told_at_once_and_a_restart_binds() -> None:
    port = free_port()
    with server(port=port) as (_, first):
        start = time.monotonic()
        result = subprocess.run([sys.executable, str(SCRIPT), str(port), "5", "5", "0"], capture_output=True, text=True, timeout=30)
        assert result.returncode == 3 and time.monotonic() - start < 20
        assert result.stdout.splitlines()[0] == f"error: port {port} on 127.0.0.1 is in use by another process: stop it or choose another with --port"
        first.kill()
        first.wait(10)
        with server(port=port) as (url, _):
            assert httpx.get(f"{url}/health").status_code == 200


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])

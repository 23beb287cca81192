"""Limits of a server over real sockets: the time of an answer and the time in the queue."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from processes import HANG_S, gauges, serve, until
from tests.faults.clients import Ending, body_of, read_stream
from tests.faults.kit import faulty

COMMON = ("--platform", "faulty", "--num-blocks", "1200", "--max-model-len", "8k", "--log-level", "warning")


def error_of(answer: httpx.Response) -> dict[str, str]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def test_time_of_an_answer_and_time_in_the_queue(tmp_path: Path) -> None:
    async def test(url: str) -> tuple[list[Ending], httpx.Response, list[httpx.Response]]:
        async with httpx.AsyncClient(base_url=url, timeout=HANG_S) as client:
            long = [asyncio.create_task(read_stream(client, [20 + at], 6000)) for at in range(2)]
            whole = asyncio.create_task(client.post("/v1/completions", json=body_of([5], 6000)))
            while gauges(url)["llmx:num_requests_running"] < 3:
                await asyncio.sleep(0.01)
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body_of([5], 5, stream=streamed)) for streamed in (False, True)))
            return list(await asyncio.gather(*long)), await whole, answers

    limits = ("--max-num-seqs", "3", "--queue-timeout", "0.3", "--request-timeout", "6")
    with serve(*COMMON, *limits, environ=faulty(tmp_path, step_s=0.01)) as server:
        long, whole, answers = asyncio.run(test(server.url))
        for ending in long:
            assert ending.chunks > 5 and ending.done and ending.error
            assert ending.error["code"] == "request_timeout" and "6 s" in ending.error["message"] and "--request-timeout" in ending.error["message"]
        for answer in answers:
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
            assert error_of(answer)["code"] == "queue_timeout" and "0.3 s" in error_of(answer)["message"] and "--queue-timeout" in error_of(answer)["message"]
        assert whole.status_code == 408 and error_of(whole)["code"] == "request_timeout"
        assert httpx.post(f"{server.url}/v1/completions", json=body_of([5], 5), timeout=HANG_S).status_code == 200
        until(lambda: gauges(server.url)["llmx:kv_cache_usage_perc"] == 0)


def test_b101_clients_that_leave_while_queued_in_prefill_or_in_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two slots and small chunks: one request streams, one is in its prefill, the others wait. All leave; everything is free at once."""

    async def test(url: str, streamed: bool) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=HANG_S) as client:
            ending = Ending()
            streaming = asyncio.create_task(read_stream(client, [20], 2000, ending))
            while ending.chunks < 3:
                await asyncio.sleep(0.01)
            others = [asyncio.create_task(client.post("/v1/completions", json=body_of([30 + at] * 2000, 50, stream=streamed, n=2))) for at in range(4)]
            while gauges(url)["llmx:num_requests_waiting"] < 3:
                await asyncio.sleep(0.01)
            for task in (streaming, *others):
                task.cancel()
            await asyncio.gather(streaming, *others, return_exceptions=True)

    options = ("--max-num-seqs", "3", "--max-num-batched-tokens", "16")
    with serve(*COMMON, *options, environ=faulty(tmp_path, step_s=0.05)) as server:
        for streamed in (True, False):
            asyncio.run(test(server.url, streamed))
            seconds = until(lambda: idle(server.url))
            with capsys.disabled():
                print(f"\nfive clients left: nothing runs, waits or holds KV after {seconds:.2f} s")
        assert httpx.post(f"{server.url}/v1/completions", json=body_of([5], 5), timeout=HANG_S).status_code == 200


def idle(url: str) -> bool:
    """Nothing runs, waits or holds KV."""
    now = gauges(url)
    return not (now["llmx:num_requests_running"] or now["llmx:num_requests_waiting"] or now["llmx:kv_cache_usage_perc"])

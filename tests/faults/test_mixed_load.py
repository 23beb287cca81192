"""Clients of all kinds at once for a while, some of which go away: no error that a client did not cause, nothing left behind, steady streams.

MIXED_LOAD_SECONDS sets the length, 60 by default; 600 is the figure in docs/STATUS.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import grpc
import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from grpc_client import address_of
from processes import HANG_S, children, serve, until
from prometheus_client.parser import text_string_to_metric_families
from tests.faults.observed_server import private_kib
from two_models import minilm

from llmx_server.rpc.schema import SERVICE, message_type

CLIENTS = 64
LEAVE = 0.05  # the part of requests whose client goes away in the middle
GROWTH = 1.05  # private memory at the end against that after the first third
GAP, STEPS = 5, 20  # p99 of the gaps between two tokens, and the longest, in medians

TEXT, VECTORS, GRPC = "text", "vectors", "grpc"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}}, "required": ["name", "age"]}
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}}
WORDS = "the quick brown fox jumps over a lazy dog while it rains in the old town and nobody looks up from their book".split()


@dataclass
class Seen:
    """What the clients saw."""

    kinds: Counter[str] = field(default_factory=Counter)
    left: int = 0
    gaps: list[tuple[float, str]] = field(default_factory=list)  # seconds, kind
    faults: list[str] = field(default_factory=list)


def _request(dice: random.Random) -> tuple[str, str, dict[str, Any]]:
    """A kind, its path and a body."""
    text = " ".join(dice.choices(WORDS, k=dice.randrange(3, 120)))
    chat: dict[str, Any] = {"model": TEXT, "messages": [{"role": "user", "content": text}], "max_tokens": dice.randrange(1, 64), "seed": dice.randrange(99)}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    tools = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    kinds = {
        "chat": ("/v1/chat/completions", chat),
        "chat stream": ("/v1/chat/completions", chat | {"stream": True}),
        "completion": ("/v1/completions", {"model": TEXT, "prompt": text, "max_tokens": dice.randrange(1, 64), "n": dice.choice((1, 1, 3))}),
        "completion stream": ("/v1/completions", {"model": TEXT, "prompt": text, "max_tokens": dice.randrange(1, 64), "stream": True, "logprobs": 2}),
        "message stream": ("/v1/messages", {k: chat[k] for k in ("model", "messages", "max_tokens")} | {"stream": True}),
        "response stream": ("/v1/responses", {"model": TEXT, "input": text, "max_output_tokens": dice.randrange(1, 64), "stream": True}),
        "schema": ("/v1/chat/completions", chat | {"response_format": schema, "max_tokens": 80}),
        "tool stream": ("/v1/chat/completions", chat | tools | {"max_tokens": 80, "stream": True}),
        "embedding": ("/v1/embeddings", {"model": VECTORS, "input": [text, "another text"]}),
        "grpc stream": (GRPC, {"model": TEXT, "text": text, "max_tokens": dice.randrange(1, 64), "logprobs": 2}),
    }
    kind = dice.choice(list(kinds))
    return kind, *kinds[kind]


async def _ask(client: httpx.AsyncClient, channel: grpc.aio.Channel, dice: random.Random, seen: Seen) -> None:
    kind, path, body = _request(dice)
    seen.kinds[kind] += 1
    if path == GRPC:
        await _call(channel, body, dice.random() if dice.random() < LEAVE else None, seen)
    elif dice.random() < LEAVE:
        seen.left += 1
        try:
            async with asyncio.timeout(dice.random()):
                await client.post(path, json=body)
        except TimeoutError:
            pass
    elif body.get("stream"):
        await _read(client, kind, path, body, seen)
    else:
        answer = await client.post(path, json=body)
        if answer.status_code != 200:
            seen.faults.append(f"{kind}: {answer.status_code} {answer.text[:200]}")
        elif kind == "schema" and answer.json()["choices"][0]["finish_reason"] == "stop":
            assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) >= {"name", "age"}  # the schema allows more


async def _call(channel: grpc.aio.Channel, body: dict[str, Any], leaves_s: float | None, seen: Seen) -> None:
    """A gRPC stream, to its end or until its deadline."""
    request, response = message_type("GenerateRequest"), message_type("GenerateResponse")
    ask = channel.unary_stream(f"/{SERVICE}/Generate", request_serializer=request.SerializeToString, response_deserializer=response.FromString)
    last, usage = 0.0, False
    seen.left += leaves_s is not None
    try:
        async for part in ask(request(**body), timeout=leaves_s or 10 * HANG_S):
            usage, now = usage or part.HasField("usage"), time.monotonic()
            if last and not usage and now - last > 1e-3:
                seen.gaps.append((now - last, "grpc stream"))
            last = now
    except grpc.RpcError as error:
        if leaves_s is None or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            seen.faults.append(f"grpc stream: {error.code()} {error.details()}")
    else:
        if not usage:
            seen.faults.append("grpc stream: a stream without an end")


async def _read(client: httpx.AsyncClient, kind: str, path: str, body: dict[str, Any], seen: Seen) -> None:
    """A stream to its end; the times between its events are noted."""
    last, ended = 0.0, False
    async with client.stream("POST", path, json=body) as response:
        if response.status_code != 200:
            seen.faults.append(f"{kind}: {response.status_code} {(await response.aread())[:200]!r}")
            return
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            ended = ended or "[DONE]" in line or "message_stop" in line or '"response.completed"' in line or '"response.incomplete"' in line
            if '"error"' in line and '"error":null' not in line:
                seen.faults.append(f"{kind}: {line[:200]}")
            now = time.monotonic()
            if last and not ended and now - last > 1e-3 and kind != "tool stream":  # events of one step come together; a call's tokens are not all shown
                seen.gaps.append((now - last, kind))
            last = now
    if not ended:
        seen.faults.append(f"{kind}: a stream without an end")


async def _load(url: str, address: str, seconds: float, seen: Seen, memory: list[dict[int, int]], processes: list[int]) -> None:
    end = time.monotonic() + seconds

    async def one(client: httpx.AsyncClient, channel: grpc.aio.Channel, seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end:
            await _ask(client, channel, dice, seen)

    async def watch() -> None:
        await asyncio.sleep(seconds / 3)
        memory.append({pid: private_kib(pid) for pid in processes})

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=10 * HANG_S, limits=limits) as client, grpc.aio.insecure_channel(address) as channel:
        await asyncio.gather(watch(), *(one(client, channel, seed) for seed in range(CLIENTS)))


def _total(url: str, *names: str) -> float:
    """The sum of some gauges over both models."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=HANG_S).text)
    return sum(sample.value for family in families for sample in family.samples if sample.name in names)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_sixty_four_clients_of_all_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMX_CPU_PREFAULT", "1")  # the KV cache takes its memory at the start, not when a page is first written
    seconds, seen, memory = float(os.environ.get("MIXED_LOAD_SECONDS", "60")), Seen(), []
    models = [
        {"model": "smollm2-135m-instruct", "served_model_name": [TEXT], "num_blocks": 2000, "max_num_seqs": 64, "max_model_len": 2048},
        {"model": str(minilm()), "served_model_name": [VECTORS], "num_blocks": 64},
    ]
    (tmp_path / "two.yaml").write_text(json.dumps({"models": models}))  # JSON is YAML
    with serve("--config", str(tmp_path / "two.yaml"), "--grpc-port", "0") as server:
        processes = [server.process.pid, *children(server.process)]
        asyncio.run(_load(server.url, address_of(server), seconds, seen, memory, processes))
        until(lambda: _total(server.url, "llmx:num_requests_running", "llmx:num_requests_waiting") == 0)
        assert _total(server.url, "llmx:kv_cache_usage_perc") == 0
        memory.append({pid: private_kib(pid) for pid in processes})
        server.process.terminate()
        code, log = server.end()
    gaps = [gap for gap, _ in seen.gaps]
    p50, p99, longest = median(gaps), quantiles(gaps, n=100)[-1], max(gaps)
    with capsys.disabled():
        print(f"\n{sum(seen.kinds.values())} requests in {seconds:g} s, {seen.left} left: {dict(seen.kinds)}")
        print(f"gaps: {len(gaps)}, p50 {p50:.3f} s, p99 {p99 / p50:.1f} and the longest ({max(seen.gaps)[1]}) {longest / p50:.1f} times as long")
        print(f"private memory in KiB after a third and at the end: {memory}")
    assert not seen.faults, (len(seen.faults), seen.faults[:5])
    assert code == 0 and "Traceback" not in log, log[-2000:]
    for pid in processes:
        assert memory[1][pid] <= GROWTH * memory[0][pid], memory
    assert p99 <= GAP * p50 and longest <= STEPS * p50

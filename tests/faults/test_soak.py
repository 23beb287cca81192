"""Many streams at once with random lengths, disconnects and aborts, round after round: all are answered and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from processes import HANG_S, children, gauges, until
from tests.faults.clients import body_of, read_stream
from tests.faults.kit import NAN, faulty, trimming
from tests.faults.observed_server import private_kib

from llmx.config import PlatformConfig
from llmx.hooks.loader import PluginLoader

ROUNDS = 3
GROWTH = 1.02  # private memory after the last round against that after the first
FATES = ("whole stream", "whole answer", "left after some chunks", "left at once", "cancelled answer", "NaN")


async def _one(client: httpx.AsyncClient, dice: random.Random, fate: str) -> str:
    """One client with its fate; what became of it."""
    prompt = [dice.randrange(20, 900) for _ in range(dice.randrange(1, 40))]
    tokens = dice.randrange(1, 40)
    match fate:
        case "whole stream":
            ending = await read_stream(client, prompt, tokens)
            assert ending.error is None and ending.finish == "length" and ending.done, ending
        case "whole answer":
            answer = await client.post("/v1/completions", json=body_of(prompt, tokens))
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == tokens
        case "NaN":
            ending = await read_stream(client, [*prompt, NAN], tokens)
            assert ending.error is not None and ending.error["code"] == "generation_failed", ending
        case _:
            body = body_of(prompt, 2000, stream=fate != "cancelled answer", n=dice.choice((1, 1, 3)))
            wanted, seconds = dice.randrange(1, 8) if fate == "left after some chunks" else 10**6, dice.random()
            try:
                async with asyncio.timeout(None if wanted < 10**6 else seconds), client.stream("POST", "/v1/completions", json=body) as response:
                    assert response.status_code == 200
                    async for line in response.aiter_lines():
                        wanted -= bool(line)
                        if wanted == 0:
                            break
            except TimeoutError:
                pass
    return fate


async def _round(url: str, streams: int, seed: int, fates: tuple[str, ...]) -> Counter[str]:
    dice = random.Random(seed)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=10 * HANG_S, limits=limits) as client:
        return Counter(await asyncio.gather(*(_one(client, random.Random(dice.random()), fates[at % len(fates)]) for at in range(streams))))


def _figures(process: subprocess.Popen[str], engine: int) -> dict[str, int]:
    """Memory, descriptors and tasks of both processes, once connections that were closed are gone."""
    assert process.stdout is not None
    last: dict[str, int] = {}
    while True:
        os.kill(engine, signal.SIGUSR1)
        process.send_signal(signal.SIGUSR1)
        now = json.loads(process.stdout.readline())
        if last and now["descriptors"] == last["descriptors"] and now["tasks"] == last["tasks"]:
            return {**now, "engine_kib": private_kib(engine), "engine_descriptors": len(os.listdir(f"/proc/{engine}/fd"))}
        last = now


def _soak(folder: Path, platform: str, streams: int, capsys: pytest.CaptureFixture[str], *options: str) -> None:
    fates = FATES if platform == "faulty" else FATES[:-1]
    environ = {**os.environ, **faulty(folder), **trimming(folder)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(Path(__file__).with_name("observed_server.py")), f"platform={platform}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1]
            (engine,) = children(process)
            rounds = []
            for seed in range(1, ROUNDS + 1):
                fate = asyncio.run(_round(url, streams, seed, fates))
                assert fate.total() == streams
                until(lambda: not any(gauges(url)[f"llmx:num_requests_{state}"] for state in ("running", "waiting")))
                assert gauges(url)["llmx:kv_cache_usage_perc"] == 0
                rounds.append(_figures(process, engine))
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
    with capsys.disabled():
        print(f"\n{streams} streams on {platform}, after each round: {rounds}")
    assert process.returncode == 0 and "Traceback" not in log and "never retrieved" not in log, log[-2000:]
    first, last = rounds[0], rounds[-1]
    for name in ("descriptors", "tasks", "engine_descriptors"):
        assert last[name] == first[name], (name, rounds)
    for name in ("private_kib", "engine_kib"):
        assert last[name] <= GROWTH * first[name], (name, rounds)


def test_sixty_streams_three_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _soak(tmp_path, "faulty", 60, capsys, "num_blocks=400", "max_num_seqs=32", "max_model_len=2100")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("platform", ["faulty", "cpu"])
def test_two_hundred_streams_three_rounds(
    tmp_path: Path, platform: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    present = {probe.name for probe in PluginLoader.discover(PlatformConfig()).probe_all({}) if probe.detection and probe.detection.present}
    if platform == "cpu" and "cpu" not in present:
        pytest.skip("the CPU platform is not installed")
    # The system gives a page of the KV cache its memory when it is first written, which is not growth: all are written at the start.
    monkeypatch.setenv("LLMX_CPU_PREFAULT", "1")
    _soak(tmp_path, platform, 200, capsys, "num_blocks=2000", "max_num_seqs=64", "max_model_len=2100", "threads=1")

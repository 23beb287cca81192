"""A plugin watches what an engine and its server do: llmx_step_observers, llmx_stat_loggers, llmx_request_observers."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, SamplingParams
from llmx.config import EngineConfig
from llmx.engine.accounting import Accounting
from llmx.hooks import StatReading
from llmx_server import create_app
from llmx_server.stat_loggers import LogLine, read_regularly
from tests.hooks.vendor import install

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))  # its tests' stand-in for an engine

from fake_engine import FakeEngine  # noqa: E402
from in_process import http_of  # noqa: E402

STEPS = """
from llmx.hooks import hookimpl

class Broken:
    calls = 0
    def __call__(self, record):
        self.calls += 1
        raise KeyError("broken")

seen, broken, asked = [], Broken(), []

@hookimpl
def llmx_step_observers(config):
    asked.append(config.model.source)
    return [broken, seen.append]
"""


def test_a_plugin_is_told_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    install(tmp_path, monkeypatch, "llmx-watch", {"watch_llmx.py": STEPS}, "[llmx.plugins]\nwatch = watch_llmx\n")
    with caplog.at_level(logging.WARNING, "llmx.engine"), LLM(platform="null", num_blocks=600) as llm:
        llm.generate([[1, 2, 3, 4, 5], [6, 7, 8]], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
        stats = llm._engine.stats()
        kv = llm._engine.kv
    plugin = sys.modules["watch_llmx"]
    first, *_, last = plugin.seen
    assert [one.number for one in plugin.seen] == list(range(1, stats.steps + 1)) and plugin.asked == ["smollm2-135m-instruct"]
    assert (first.requests, first.prefill_tokens, first.decode_tokens) == (2, 8, 0)
    assert (last.requests, last.prefill_tokens, last.decode_tokens) == (2, 0, 2)
    assert (first.running, first.kv_blocks_used, first.kv_blocks_total) == (2, 2, kv.blocks_total) and last.running == 0
    assert sum(one.prefill_tokens + one.decode_tokens for one in plugin.seen) == stats.step_tokens
    assert sum(one.forward_us + one.sample_us for one in plugin.seen) == stats.forward_us + stats.sample_us and first.ended_ns <= last.ended_ns
    assert plugin.broken.calls == 1
    (line,) = [one.message for one in caplog.records if "step observer" in one.message]
    assert "KeyError: 'broken'" in line


def test_without_observers_nothing_is_in_the_way() -> None:
    with LLM(platform="null", num_blocks=600) as llm:
        assert llm._engine.accounting.stepped.__func__ is Accounting.stepped  # type: ignore[attr-defined]


SERVER = """
import threading
from llmx.hooks import OptionDef, hookimpl

class Diary:
    def __init__(self):
        self.lines = []
    def arrived(self, request):
        self.lines.append(("arrived", request.method, request.path, request.status))
        request.notes["diary"] = len(self.lines)
    def first_token(self, request, generation):
        self.lines.append(("first_token", generation.model, generation.prompt_tokens, request.generations.index(generation)))
    def generated(self, request, generation):
        self.lines.append(("generated", generation.generated_tokens, generation.finish_reasons, generation.error))
    def ended(self, request):
        self.lines.append(("ended", request.route, request.status, request.notes["diary"]))
        self.last = request

class Broken:
    calls = 0
    def arrived(self, request):
        self.calls += 1
        raise OSError("no paper")

class Slow:
    def __init__(self):
        self.readings, self.go, self.threads = [], threading.Event(), set()
    def record(self, reading):
        self.threads.add(threading.current_thread().name)
        self.go.wait(60)
        self.readings.append(reading)

class Failing:
    calls = 0
    def record(self, reading):
        self.calls += 1
        raise OSError("no disk")

diary, broken, slow, failing, given = Diary(), Broken(), Slow(), Failing(), []

@hookimpl
def llmx_add_options():
    return [OptionDef("pages", "int", "of the diary", default=7)]

@hookimpl
def llmx_request_observers(config):
    given.append(config.plugins["diary"]["pages"])
    return [broken, diary]

@hookimpl
def llmx_stat_loggers(config):
    return [slow, failing]
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    install(tmp_path, monkeypatch, "llmx-diary", {"diary_llmx.py": SERVER}, "[llmx.plugins]\ndiary = diary_llmx\n")
    return import_module("diary_llmx")


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_a_plugin_is_told_of_requests(plugin: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        async with http_of(create_app(FakeEngine(), EngineConfig())) as client:  # type: ignore[arg-type]
            headers = {"traceparent": "00-1", "authorization": "secret", "x-request-id": "mine"}
            done = await client.post("/v1/completions", json={"prompt": ["ab", "abc"], "max_tokens": 3}, headers=headers)
            assert done.status_code == 200
            assert (await client.post("/v1/completions", json={"prompt": 5})).status_code == 400
            await client.get("/v1/responses/none")

    with caplog.at_level(logging.WARNING, "llmx.server"):
        asyncio.run(ask())
    lines = plugin.diary.lines
    assert lines[0] == ("arrived", "POST", "/v1/completions", 0) and plugin.given == [7]
    assert sorted(line for line in lines[1:6] if line[0] == "first_token") == [("first_token", "fake-model", 2, 0), ("first_token", "fake-model", 3, 1)]
    assert [line for line in lines[1:6] if line[0] == "generated"] == [("generated", 3, ("length",), "")] * 2
    assert lines[5:8] == [("ended", "/v1/completions", 200, 1), ("arrived", "POST", "/v1/completions", 0), ("ended", "/v1/completions", 400, 7)]
    assert lines[-1][:3] == ("ended", "/v1/responses/{response_id}", 404)
    assert plugin.broken.calls == 1 and sum("request observer" in one.message for one in caplog.records) == 1
    assert set(plugin.diary.last.headers) <= {"traceparent", "user-agent"}


def test_a_plugin_is_told_of_statistics_and_delays_nobody(plugin: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scrape() -> None:
        async with http_of(create_app(FakeEngine(), EngineConfig())) as client:  # type: ignore[arg-type]
            for _ in range(5):
                assert (await client.get("/metrics")).status_code == 200
            plugin.slow.go.set()
            await asyncio.to_thread(_until, lambda: len(plugin.slow.readings) == 1)  # it was busy with the first while four more came
            await client.get("/metrics")
            await asyncio.to_thread(_until, lambda: len(plugin.slow.readings) == 2 and plugin.failing.calls >= 2)

    with caplog.at_level(logging.WARNING, "llmx.server"):
        asyncio.run(scrape())
    (line,) = [one.message for one in caplog.records if "statistics logger" in one.message]
    assert "no disk" in line and "MainThread" not in plugin.slow.threads
    reading = plugin.slow.readings[0]
    assert reading.model == "fake-model" and reading.values["llmx:num_requests_running"] >= 0 and "llmx:generation_tokens" in reading.values


def test_without_plugins_nothing_is_watched() -> None:
    app = create_app(FakeEngine(), EngineConfig())  # type: ignore[arg-type]
    assert "Watched" not in [one.cls.__name__ for one in app.user_middleware]  # type: ignore[attr-defined]


def test_the_servers_own_line(caplog: pytest.LogCaptureFixture) -> None:
    line = LogLine(2.0)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "steps", "prompt_tokens", "generation_tokens", "prefix_cache_queries")

    def reading(second: float, *values: float) -> StatReading:
        return StatReading("m", int(second * 1e9), {f"llmx:{name}": value for name, value in zip((*names, "prefix_cache_hits"), values, strict=True)}, {})

    with caplog.at_level(logging.INFO, "llmx.server"):
        line.record(reading(0, 0, 0, 0, 0, 0, 0, 0, 0))
        line.record(reading(0.5, 1, 0, 0.5, 9, 9, 9, 9, 9))  # too early
        line.record(reading(2, 3, 1, 0.25, 10, 40, 100, 40, 10))
        line.record(reading(4, 0, 0, 0, 10, 40, 100, 40, 10))  # it rested
    shown = "m: 20.0 prompt tokens/s, 50.0 generated tokens/s, 3 running, 1 waiting, 25% of KV in use, 25% of new prompts cached"
    assert [one.message for one in caplog.records] == [shown]


def test_the_server_reads_by_itself_where_it_is_told_to(plugin: Any) -> None:
    async def read() -> None:
        engine = FakeEngine()
        reading = asyncio.create_task(read_regularly(create_app(engine, EngineConfig()).state.models, 0.01))  # type: ignore[arg-type]
        plugin.slow.go.set()
        await asyncio.to_thread(_until, lambda: len(plugin.slow.readings) >= 3)
        engine.alive = False  # it is started again: nothing is read meanwhile, and then it goes on
        await asyncio.sleep(0.05)
        engine.alive, seen = True, len(plugin.slow.readings)
        await asyncio.to_thread(_until, lambda: len(plugin.slow.readings) > seen and not reading.done())
        reading.cancel()

    asyncio.run(read())

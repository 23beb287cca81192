"""Models at run time: load, unload, sleep, wake and idle unloading, on engines that a test controls and on real ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, Info
from in_process import http_of
from processes import HANG_S, children, llmx, serve, until
from tests.cases.echo import install

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import ConfigError, ModelError
from llmx_server import create_app
from llmx_server.served_models import ServedModels

MODEL = "smollm2-135m-instruct"


class Two:
    def __init__(self) -> None:
        self.first, self.second = FakeEngine(), FakeEngine(info=Info(name="second", served_names=("second",)))
        self.app = create_app(self.first, EngineConfig(server=ServerConfig()), others=[(self.second, EngineConfig())])  # type: ignore[arg-type, list-item]
        self.models: ServedModels = self.app.state.models


@pytest.fixture
def two() -> Two:
    return Two()


@pytest.fixture
async def ask(two: Two) -> AsyncIterator[httpx.AsyncClient]:
    async with http_of(two.app) as client:
        yield client


async def complete(ask: httpx.AsyncClient, model: str = "second") -> httpx.Response:
    return await ask.post("/v1/completions", json={"model": model, "prompt": "x"})


@pytest.mark.anyio
async def test_sleep_and_wake(ask: httpx.AsyncClient, two: Two) -> None:
    assert (await ask.post("/sleep?model=second")).json() == {"status": "sleeping", "level": 1}
    assert two.second.closed and not two.first.closed
    refused = await complete(ask)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_asleep" and int(refused.headers["Retry-After"]) > 0
    assert (await complete(ask, "fake-model")).status_code == 200
    assert (await ask.get("/is_sleeping?model=second")).json() == {"is_sleeping": True} and (await ask.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await ask.get("/health")).json()["models"] == {"fake-model": "ok", "second": "asleep"}
    assert (await ask.post("/wake_up")).json() == {"status": "awake"}
    assert (await complete(ask)).status_code == 200 and two.models.find("second").engine is not two.second


@pytest.mark.anyio
async def test_mode_wait_lets_a_request_end_and_abort_does_not(ask: httpx.AsyncClient, two: Two) -> None:
    two.second.gate = asyncio.Event()
    running = asyncio.create_task(complete(ask))
    while not two.second.running:
        await asyncio.sleep(0.01)
    sleeping = asyncio.create_task(ask.post("/sleep?model=second&mode=wait"))
    await asyncio.sleep(0.05)
    assert not sleeping.done() and (await complete(ask)).json()["error"]["code"] == "model_asleep"
    two.second.gate.set()
    assert (await running).status_code == 200 and (await sleeping).status_code == 200 and two.second.closed


@pytest.mark.anyio
@pytest.mark.parametrize("query", ["level=0", "level=x", "mode=keep", "model=none"])
async def test_what_sleep_cannot_do(ask: httpx.AsyncClient, two: Two, query: str) -> None:
    refused = await ask.post(f"/sleep?{query}")
    assert refused.status_code == (404 if "model" in query else 400) and not two.second.closed
    assert (await ask.post("/wake_up?tags=weights")).status_code == 400


@pytest.mark.anyio
async def test_a_page_of_another_origin_is_refused(ask: httpx.AsyncClient, two: Two) -> None:
    assert (await ask.post("/sleep", headers={"Origin": "http://evil.example"})).status_code == 400 and not two.first.closed
    assert (await ask.post("/sleep", headers={"Origin": "http://test"})).status_code == 200


@pytest.mark.anyio
async def test_idle_models_rest_until_the_next_request(ask: httpx.AsyncClient, two: Two) -> None:
    idle = asyncio.create_task(two.models.rest_idle(0.1))
    two.first.running["one that runs"] = []
    try:
        async with asyncio.timeout(HANG_S):
            while not two.second.closed:
                await asyncio.sleep(0.02)
        assert not two.first.closed  # it works
        states = {one["id"]: one["state"] for one in (await ask.get("/v1/admin/models")).json()["data"]}
        assert states == {"fake-model": "loaded", "second": "unloaded"}
        idle.cancel()
        answers = await asyncio.gather(*(complete(ask) for _ in range(3)))
        assert [one.status_code for one in answers] == [200] * 3
        assert len(two.models.find("second").engine.started_ids) == 3  # type: ignore[attr-defined]  # one engine for all who asked
    finally:
        idle.cancel()


@pytest.mark.anyio
async def test_load_and_unload(ask: httpx.AsyncClient, two: Two) -> None:
    asked: list[dict[str, Any]] = []

    def make(options: dict[str, Any]) -> Any:
        asked.append(options)
        if options["model"] == "wrong":
            raise ConfigError("unknown option 'x'", field="x")
        engine = FakeEngine(info=Info(name=options["model"], served_names=(options["model"],)))
        engine.config = EngineConfig()  # type: ignore[attr-defined]
        if options["model"] == "broken":
            engine.start_error = ModelError("the file is cut off", path="/m")
        return engine

    unable = await ask.post("/v1/admin/models/load", json={"model": "third"})
    assert unable.status_code == 400 and "llmx serve" in unable.json()["error"]["message"]
    two.models.make_engine = make
    loaded = await ask.post("/v1/admin/models/load", json={"model": "third", "max_model_len": 9})
    assert loaded.json() == {"id": "third", "object": "model", "names": ["third"], "state": "loaded", "running": 0}
    assert asked[-1] == {"model": "third", "max_model_len": 9} and (await complete(ask, "third")).json()["model"] == "third"
    for name, text in (("wrong", "unknown option"), ("broken", "cut off")):
        refused = await ask.post("/v1/admin/models/load", json={"model": name})
        assert refused.status_code == 400 and text in refused.json()["error"]["message"]
    again = await ask.post("/v1/admin/models/load", json={"model": "third", "max_model_len": 9})
    assert again.status_code == 400 and "two models have the name" in again.text
    assert (await ask.post("/v1/admin/models/unload", json={"model": "third"})).json()["unloaded"] is True
    gone = await complete(ask, "third")
    assert gone.status_code == 404 and "third" not in (await ask.get("/v1/models")).text
    assert 'llmx:num_requests_running{model_name="third"}' not in (await ask.get("/metrics")).text
    await ask.post("/v1/admin/models/unload", json={"model": "second"})
    last = await ask.post("/v1/admin/models/unload", json={"model": "fake-model"})
    assert last.status_code == 400 and "the only model" in last.json()["error"]["message"] and not two.first.closed


def private_kib(pid: int) -> int:
    """What the process alone has written; clean pages of libraries become shared when a second process has them too."""
    return sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Private_Dirty"))


def test_engines_come_and_go_with_their_memory(tmp_path: Path) -> None:
    """On `llmx serve`: a model more, one less, sleep, a wake by hand, and one by the next request."""
    options = ("--platform", "echo", "--max-model-len", "64", "--num-blocks", "40", "--idle-unload", "600")
    with serve(MODEL, "--served-model-name", "a", *options, environ=install(tmp_path)) as running:

        def post(path: str, **body: Any) -> httpx.Response:
            return httpx.post(running.url + path, json=body, timeout=HANG_S)

        (first,) = children(running.process)
        alone = private_kib(first)
        assert post("/v1/admin/models/load", model=MODEL, served_model_name=["b"]).json()["id"] == "b"
        assert post("/v1/completions", model="b", prompt="I am b").json()["choices"][0]["text"] == "I am b"
        both = children(running.process)
        assert len(both) == 2 and sum(map(private_kib, both)) > 1.5 * alone
        assert post("/v1/admin/models/load", model="/no/such.gguf").status_code == 400
        assert post("/v1/admin/models/load", model="org/name-GGUF").status_code == 400  # not fetched
        assert post("/v1/admin/models/unload", model="b").status_code == 200
        assert children(running.process) == [first] and private_kib(first) < 1.2 * alone
        server = ("--base-url", running.url)
        assert llmx("models", "load", MODEL, "--served-model-name", "c", "--options", '{"max_model_len": 32}', *server).stdout == "c is loaded\n"
        assert [line.split()[:2] for line in llmx("models", "list", *server).stdout.splitlines()[1:]] == [["a", "loaded"], ["c", "loaded"]]
        assert llmx("models", "unload", "c", *server).stdout == "c is unloaded\n"
        refused = llmx("models", "unload", "a", *server)
        assert refused.returncode == 1 and "the only model" in refused.stderr and "Traceback" not in refused.stderr
        assert post("/sleep").status_code == 200 and children(running.process) == []
        assert post("/v1/completions", model="a", prompt="x").status_code == 503
        assert post("/wake_up").status_code == 200
        assert post("/v1/completions", model="a", prompt="I am a").json()["choices"][0]["text"] == "I am a"
        (woken,) = children(running.process)
        os.kill(woken, signal.SIGKILL)  # what was woken is watched as the first was
        until(lambda: [pid for pid in children(running.process) if pid != woken])
        assert post("/v1/completions", model="a", prompt="again").status_code == 200
        running.process.send_signal(signal.SIGTERM)
        code, err = running.end()
        assert code == 0 and "Traceback" not in err

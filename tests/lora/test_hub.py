"""Adapters by their names on the hub: only what is allowed is fetched, once, and two files of it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, LoRARequest, RequestError, SamplingParams
from llmx.engine import hub_adapters
from llmx.engine.hub_adapters import HubAdapters, HubUnavailable
from llmx.errors import ConfigError, ModelNotFound
from llmx.resolve import resolve
from llmx.weights.hub import Hub
from llmx.weights.hub_cache import HubCache
from tests.lora.adapters import smollm2_adapter
from tests.sources.fake_hub import COMMIT, FakeHub, Repo, fake_hub

GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
ALLOWED = ["my-org/*", "other/one"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    folder = smollm2_adapter(tmp_path / "adapter")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with fake_hub() as server:
        server.repos = {
            "my-org/good": Repo({**files, "README.md": b"x", "optimizer.pt": b"x"}),
            "my-org/model": Repo({"config.json": b"{}"}),
            "my-org/large": Repo({**files, "adapter_config.json": json.dumps({**json.loads(files["adapter_config.json"]), "r": 99}).encode()}),
            "other/one": Repo(files),
            "other/two": Repo(files),
        }
        cache = HubCache(str(tmp_path / "cache"))
        monkeypatch.setattr(hub_adapters, "hub_of", lambda config: Hub(cache, config.hf_token, config.offline, server.url))
        yield server


def test_what_is_allowed_is_fetched_when_it_is_first_named(hub: FakeHub) -> None:
    with LLM(platform="null", num_blocks=600, lora_hub=ALLOWED) as llm:
        assert hub.seen == []
        llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/good"))
        asked = len(hub.seen)
        assert {path.rsplit("/", 1)[-1] for path in hub.paths("HEAD")} == {"adapter_config.json", "adapter_model.safetensors"}
        llm.generate("a b c", GREEDY, lora_request=LoRARequest(f"my-org/good@{COMMIT}"))
        llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/good"))
        assert len(hub.seen) == asked  # what is here needs no connection
        llm.generate("a b c", GREEDY, lora_request=LoRARequest("other/one"))
        asked = len(hub.seen)
        for name in ("other/two", "my-org/good:Q4_0", "my-org", "my-org/../good", "../my-org/good", "my-org/good@-x"):
            with pytest.raises(ModelNotFound):
                llm.generate("a b c", GREEDY, lora_request=LoRARequest(name))
        assert len(hub.seen) == asked
        assert llm.llm_engine.list_loras() == ["my-org/good", f"my-org/good@{COMMIT}", "other/one"]
        with pytest.raises(RequestError, match="my-org/model has no adapter_config.json and no adapter_model.safetensors, so it is no LoRA adapter"):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/model"))
        for name in ("my-org/none", "my-org/x-", "my-org/good@none"):
            with pytest.raises(ModelNotFound, match=f"adapter '{name}': "):
                llm.generate("a b c", GREEDY, lora_request=LoRARequest(name))
        with pytest.raises(RequestError, match="adapter 'my-org/large': its rank is 99, but --max-lora-rank is 64"):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/large"))
        assert not any("large" in path and path.endswith("adapter_model.safetensors") for path in hub.paths())


def test_offline_and_off(hub: FakeHub) -> None:
    with LLM(platform="null", num_blocks=600, lora_hub=ALLOWED, offline=True) as llm:
        with pytest.raises(HubUnavailable, match="my-org/good is not on this machine, and cannot be fetched: --offline is set"):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/good"))
    with LLM(platform="null", num_blocks=600, enable_lora=True) as llm:
        with pytest.raises(ModelNotFound):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/good"))
    assert hub.seen == []


class Told:
    """A Steering that takes note of what it is to load."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str]] = []

    async def load_adapter(self, name: str, path: str) -> dict[str, Any]:
        assert (Path(path) / "adapter_model.safetensors").is_file()
        self.loads.append((name, path))
        return {"name": name}


def adapters_of(**options: Any) -> HubAdapters:
    return HubAdapters(resolve({"lora_hub": ALLOWED, **options})[0])


def test_a_server_fetches_beside_its_engine(hub: FakeHub) -> None:
    """The engine is told a folder, once it is complete."""
    adapters, told = adapters_of(), Told()
    assert asyncio.run(adapters.load(told, "other/two")) is None  # type: ignore[arg-type]
    assert asyncio.run(adapters.load(told, "my-org/good")) == {"name": "my-org/good"}  # type: ignore[arg-type]
    assert [name for name, _ in told.loads] == ["my-org/good"]


def test_many_who_ask_for_one_share_its_fetch(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads are free meanwhile, and a client that leaves does not end it."""
    adapters, told, gate = adapters_of(), Told(), threading.Event()
    fetch = hub_adapters.adapter_folder
    fetched: list[str] = []

    def slow(config: Any, name: str) -> str | None:
        fetched.append(name)
        assert gate.wait(60)
        return fetch(config, name)

    monkeypatch.setattr(hub_adapters, "adapter_folder", slow)

    async def ask() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(hub_adapters.ThreadPoolExecutor(1))
        tasks = [asyncio.create_task(adapters.load(told, "my-org/good")) for _ in range(6)]  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        tasks[0].cancel()
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 5), 30) == 5
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(ask())
    assert isinstance(first, asyncio.CancelledError) and others == [{"name": "my-org/good"}] * 5
    assert fetched == ["my-org/good"] and len(told.loads) == 1


def test_what_is_not_there_is_asked_for_once_a_minute(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters, now = adapters_of(), [1000.0]
    monkeypatch.setattr(hub_adapters, "monotonic", lambda: now[0])
    asked = []
    for second in (0, 59, 61):
        now[0] = 1000.0 + second
        with pytest.raises(ModelNotFound, match="^there is no LoRA adapter 'my-org/none' on the hub that this server may read: check the name$"):
            asyncio.run(adapters.load(Told(), "my-org/none"))  # type: ignore[arg-type]
        asked.append(len(hub.seen))
    assert 0 < asked[0] == asked[1] < asked[2]


def test_what_cannot_be_fetched_now_is_told_shortly(hub: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub.broken = 500
    for options, detail in (({}, "answers 500"), ({"offline": True}, "--offline is set")):
        with caplog.at_level(logging.ERROR, "llmx.lora"), pytest.raises(HubUnavailable) as caught:
            asyncio.run(adapters_of(**options).load(Told(), "my-org/good"))  # type: ignore[arg-type]
        assert str(caught.value) == "adapter 'my-org/good' cannot be fetched from the hub now: try again later" and caught.value.status == 503
        assert detail in caplog.records[-1].getMessage()


@pytest.mark.parametrize(("given", "better"), [("my-org", "my-org/[*]"), ("my-org/", "my-org/[*]"), ("a/b/c", "a/[*]"), ("*", "[*]/[*]")])
def test_a_pattern_that_names_no_repository_is_refused(given: str, better: str) -> None:
    with pytest.raises(ConfigError, match=f"--lora-hub is .*did you mean '{better}'"):
        resolve({"lora_hub": ["other/one", given]})

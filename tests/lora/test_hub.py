"""Adapters by their names on the hub: only what is allowed is fetched, once, and two files of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmx import LLM, LoRARequest, RequestError, SamplingParams
from llmx.engine import hub_adapters
from llmx.engine.hub_adapters import load_from_hub
from llmx.errors import ModelNotFound
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
        with pytest.raises(RequestError, match="adapter 'my-org/none': "):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/none"))


def test_offline_and_off(hub: FakeHub) -> None:
    with LLM(platform="null", num_blocks=600, lora_hub=ALLOWED, offline=True) as llm:
        with pytest.raises(RequestError, match="my-org/good is not on this machine, and cannot be fetched: --offline is set"):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/good"))
    with LLM(platform="null", num_blocks=600, enable_lora=True) as llm:
        with pytest.raises(ModelNotFound):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("my-org/good"))
    assert hub.seen == []


def test_a_server_fetches_beside_its_engine(hub: FakeHub) -> None:
    """The engine is told a folder, once it is complete."""
    config, _ = resolve({"lora_hub": ALLOWED})
    told: list[tuple[str, str]] = []

    async def load(name: str, path: str) -> dict[str, Any]:
        assert (Path(path) / "adapter_model.safetensors").is_file()
        told.append((name, path))
        return {"name": name}

    steering: Any = SimpleNamespace(load_adapter=load)
    assert asyncio.run(load_from_hub(config, steering, "other/two")) is None
    assert asyncio.run(load_from_hub(config, steering, "my-org/good")) == {"name": "my-org/good"}
    assert [name for name, _ in told] == ["my-org/good"]

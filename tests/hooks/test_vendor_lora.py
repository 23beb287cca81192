"""A plugin that finds adapters, and core's own folder of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmx import LLM, LoRARequest, RequestError, SamplingParams
from llmx.errors import ModelNotFound
from tests.hooks.vendor import install
from tests.lora.adapters import smollm2_adapter, write_adapter

RESOLVER = '''
"""A vendor's store of adapters: names that begin with store/ are its own."""
from llmx.hooks import LoraResolverDef, hookimpl


@hookimpl
def llmx_lora_resolvers(config):
    return [LoraResolverDef("store", "store_llmx:Store")]


class Store:
    def __init__(self, config):
        self.asked = []
        Store.last = self

    def __call__(self, name):
        self.asked.append(name)
        if name == "store/broken":
            raise OSError("the store is closed")
        return "{folder}" if name.startswith("store/") else None
'''
GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


def test_a_plugin_finds_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = smollm2_adapter(tmp_path / "adapter")
    install(tmp_path, monkeypatch, "llmx-store", {"store_llmx.py": RESOLVER.replace("{folder}", str(folder))}, "[llmx.plugins]\nstore = store_llmx\n")
    with LLM(platform="null", num_blocks=600, enable_lora=True) as llm:
        for _ in range(2):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("store/one"))
        assert llm.llm_engine.list_loras() == ["store/one"]
        with pytest.raises(ModelNotFound, match="adapter 'two' is not loaded"):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("two"))
        with pytest.raises(RequestError, match="resolver 'store' failed: the store is closed"):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("store/broken"))
        import store_llmx  # type: ignore[import-not-found]

        assert store_llmx.Store.last.asked == ["store/one", "two", "store/broken"]  # what is loaded is not looked for again


def test_a_folder_of_adapters(tmp_path: Path) -> None:
    smollm2_adapter(tmp_path / "all/org/one")
    smollm2_adapter(tmp_path / "outside")
    write_adapter(tmp_path / "all/broken", {})
    (tmp_path / "all/link").symlink_to(tmp_path / "outside")
    with LLM(platform="null", num_blocks=600, lora_dir=str(tmp_path / "all")) as llm:
        llm.generate("a b c", GREEDY, lora_request=LoRARequest("org/one"))
        for name in ("../outside", "link", str(tmp_path / "outside"), "org", "none", "x\0"):
            with pytest.raises(ModelNotFound):
                llm.generate("a b c", GREEDY, lora_request=LoRARequest(name))
        with pytest.raises(RequestError, match="holds no tensors"):
            llm.generate("a b c", GREEDY, lora_request=LoRARequest("broken"))
        assert llm.llm_engine.list_loras() == ["org/one"]

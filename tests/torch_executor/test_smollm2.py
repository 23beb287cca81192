"""The embedded model on the platform `torch`: through LLM, `llmx explain` and `llmx serve`, and what it says without torch."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")

from llmx import LLM  # noqa: E402
from llmx.engine.start import prepare  # noqa: E402
from llmx.errors import PlatformError  # noqa: E402
from llmx.hooks.loader import PluginLoader  # noqa: E402
from llmx.platform import torch_platform  # noqa: E402
from llmx.platform.select import select_platform  # noqa: E402
from llmx.resolve import resolve  # noqa: E402
from tests.e2e.greedy import ROWS, check_greedy  # noqa: E402
from tests.server.processes import llmx, serve  # noqa: E402

PICKED = [ROWS[i] for i in (0, 2, 11, 17)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(platform="torch", device="cpu", threads=1, dtype="float32", kv_cache_memory_bytes="512M", max_num_seqs=8) as one:
        yield one


def test_greedy_tokens_equal_transformers(llm: LLM) -> None:
    """On the dequantised weights in fp32, up to tokens that are equally likely there."""
    check_greedy(llm, PICKED)


def test_pages_are_float32_and_the_change_says_why(llm: LLM) -> None:
    assert (llm.info.platform, llm.info.dtype, llm.info.kv_dtype) == ("torch", "float32", "f32")
    assert any("cache.kv_dtype = float32: the reference rounds nothing" in change for change in llm.info.changes)
    config, _ = resolve({"platform": "torch", "kv_cache_dtype": "bfloat16"}, environ={})
    assert {need.dtype for need in prepare(config, ["cache.kv_dtype"]).executor.kv_needs()} == {"bf16"}


def test_explain_and_platforms() -> None:
    explained = llmx("explain", "smollm2-135m-instruct", "--platform", "torch")
    assert explained.returncode == 0 and "torch.reference" in explained.stdout and "attention" in explained.stdout, explained.stderr
    listed = llmx("platforms")
    assert listed.returncode == 0 and "torch" in listed.stdout and "only when named" in listed.stdout


def test_it_serves() -> None:
    with serve("--platform", "torch", "--device", "cpu", "--threads", "1", "--kv-cache-memory-bytes", "512M", "--max-num-seqs", "4") as server:
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 12}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."
        assert answer.json()["system_fingerprint"].endswith("torch")


def test_a_device_that_torch_cannot_use_is_named() -> None:
    for device in ("nonsense", "meta"):
        config, _ = resolve({"platform": "torch", "device": device}, environ={})
        with pytest.raises(PlatformError, match=rf"--device '{device}'.*--device cpu"):
            prepare(config)


def test_without_torch_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = resolve({"platform": "torch"}, environ={})
    monkeypatch.setattr(torch_platform, "find_spec", lambda name: None)
    probes = PluginLoader.discover(config.platform).probe_all({})
    with pytest.raises(PlatformError, match=r'not present: torch is not installed: pip install "llmx-core\[torch\]"'):
        select_platform(probes, "torch")


def test_a_broken_torch_is_told_apart_from_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "torch" or name.startswith(("torch.", "llmx.executor.torch"))]:
        monkeypatch.delitem(sys.modules, name)
    real, missing = builtins.__import__, ["torch"]

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch":
            raise ModuleNotFoundError(f"No module named {missing[0]!r}", name=missing[0])
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    config, _ = resolve({"platform": "torch"}, environ={})
    with pytest.raises(PlatformError, match=r'runs on torch, which is not installed: pip install "llmx-core\[torch\]"'):
        torch_platform.TorchPlatform().llmx_device_caps(config=config)
    missing[0] = "numpy_of_torch"
    with pytest.raises(ModuleNotFoundError, match="numpy_of_torch"):
        torch_platform.TorchPlatform().llmx_device_caps(config=config)

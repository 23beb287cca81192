"""Host memory of adapters, and adapters that cannot be copied to a slot."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from llmx import LLM, LoRARequest, RequestError, SamplingParams
from llmx.config import LoraConfig, ModelConfig
from llmx.errors import ConfigError
from llmx.executor import Control, Reply
from llmx.executor.torch.adapted import AdaptedLinear
from llmx.lora.slots import slot_bytes
from llmx.models.load import load_model
from tests.lora.adapters import random_modules, tiny_checkpoint, write_adapter

OPTIONS = {"platform": "cpu", "threads": 1, "max_model_len": 256, "num_blocks": 100, "max_num_seqs": 8, "dtype": "float32", "enable_lora": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model, and adapters a to d."""
    made = tmp_path_factory.mktemp("lora")
    weights = tiny_checkpoint(made / "model")
    for seed, name in enumerate("abcd"):
        write_adapter(made / name, random_modules(weights, seed), alpha=8.0)
    return made


def start(folder: Path, **options: object) -> LLM:
    return LLM(str(folder / "model"), **{**OPTIONS, **options})  # type: ignore[arg-type]


def tokens(llm: LLM, name: str, path: Path | None = None) -> list[int]:
    (output,) = llm.generate(PROMPT, GREEDY, lora_request=LoRARequest(name, 1, str(path) if path else "") if name else None)
    return output.outputs[0].token_ids


def held(llm: LLM) -> list[str]:
    return [one["name"] for one in llm.llm_engine.engine.adapters.facts() if one["bytes"]]


def test_the_one_unused_for_longest_makes_room_and_comes_back(folder: Path) -> None:
    with start(folder, max_cpu_loras=2, max_loras=1) as llm:
        first = {name: tokens(llm, name, folder / name) for name in "abc"}
        assert len({str(one) for one in first.values()}) == 3
        assert held(llm) == ["b", "c"] and llm.llm_engine.list_loras() == ["a", "b", "c"]
        assert tokens(llm, "a") == first["a"] and held(llm) == ["a", "c"]
        assert [tokens(llm, name) for name in "abc"] == list(first.values())


def test_those_in_use_and_pinned_stay_beyond_the_limit(folder: Path) -> None:
    with start(folder, max_cpu_loras=1, max_loras=2) as llm:
        engine = llm.llm_engine
        engine.add_lora(LoRARequest("a", 1, str(folder / "a")))
        engine.pin_lora("a")
        engine.add_request("b", PROMPT, GREEDY, lora_request=LoRARequest("b", 1, str(folder / "b")))  # waits
        engine.add_lora(LoRARequest("c", 1, str(folder / "c")))
        assert held(llm) == ["a", "b", "c"]
        while engine.has_unfinished_requests():
            engine.step()
        tokens(llm, "d", folder / "d")
        assert held(llm) == ["a", "d"]


@pytest.mark.parametrize("slots", [1, 4])
def test_files_that_changed_meanwhile_are_another_adapter(folder: Path, tmp_path: Path, slots: int) -> None:
    """Also while the old one is still in a slot: neither its matrices nor its pages are used for the new one."""
    place = tmp_path / "t"
    shutil.copytree(folder / "a", place)
    with start(folder, max_cpu_loras=1, max_loras=slots) as llm:
        wanted = {name: tokens(llm, name, folder / name) for name in "ab"}
        assert tokens(llm, "t", place) == wanted["a"]
        tokens(llm, "c", folder / "c")
        shutil.copytree(folder / "b", place, dirs_exist_ok=True)
        assert tokens(llm, "t") == wanted["b"]
        tokens(llm, "c")
        shutil.rmtree(place)
        with pytest.raises(RequestError, match="adapter 't': .*is no folder"):
            tokens(llm, "t")
        assert tokens(llm, "a") == wanted["a"]


@pytest.mark.parametrize("platform", ["cpu", "torch", "null"])
def test_a_failed_copy_ends_its_requests_alone(folder: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(folder, platform=platform, max_loras=2, **({"dtype": "auto"} if platform == "null" else {})) as llm:
        engine = llm.llm_engine
        wanted = {name: tokens(llm, name, folder / name if name else None) for name in ("", "a", "b")}
        executor = engine.engine.executor
        right = executor.control
        broken = True

        def control(command: Control) -> Reply:
            if command.kind == "lora_add" and broken and command.args["parts"] is engine.engine.adapters.find("c").parts:  # type: ignore[attr-defined]
                right(Control("lora_remove", {"slot": command.args["slot"]}))
                return Reply(False, error="out of memory")
            return right(command)

        if platform == "torch":
            put = AdaptedLinear.put

            def full(self: AdaptedLinear, slot: int, parts: Any) -> None:
                if broken and parts is engine.engine.adapters.find("c").parts:  # type: ignore[attr-defined]
                    raise RuntimeError("out of memory")
                put(self, slot, parts)

            monkeypatch.setattr(AdaptedLinear, "put", full)
        else:
            monkeypatch.setattr(executor, "control", control)
        engine.add_lora(LoRARequest("c", 1, str(folder / "c")))
        names = ["a", "c", "", "c", "b"]
        done = {}
        for index, name in enumerate(names):
            engine.add_request(str(index), PROMPT, GREEDY, lora_request=LoRARequest(name) if name else None)
        while engine.has_unfinished_requests():
            done |= {output.request_id: output.outputs[0] for output in engine.step() if output.finished}
        for index, name in enumerate(names):
            one = done[str(index)]
            if name == "c":
                assert one.finish_reason == "error" and "adapter 'c' could not be copied to a device slot: " in str(one.error)
            else:
                assert one.token_ids == wanted[name] and one.error is None
        with pytest.raises(RequestError, match="could not be copied"):
            engine.pin_lora("c")
        broken = False
        assert tokens(llm, "c") not in wanted.values() or platform == "null"  # it works again once there is memory
        assert engine.engine.adapters.in_use[0] == 2


def test_memory_of_full_slots_is_kept_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 16 in two slots, in float32: a row and a column per rank of every linear module of the layers."""
    config = load_model(ModelConfig(source=str(folder / "model"))).bundle.model
    one = sum(sum(part.weight.shape) for part in config.programs["main"].parts() if "layers" in part.target and len(part.weight.shape) == 2)
    lora = LoraConfig(enabled=True, max_loras=2, max_rank=16)
    slots = slot_bytes(lora, config)
    assert slots == 2 * 16 * 4 * one > 0 and slot_bytes(LoraConfig(), config) == 0
    with start(folder) as llm:
        kv = llm.llm_engine.info.kv_bytes
    for spare, fits in ((kv + slots, True), (kv + slots - 1, False)):
        monkeypatch.setattr("llmx.engine.start.spare_bytes", lambda spare=spare: spare)
        if fits:
            start(folder, max_loras=2, max_lora_rank=16).close()
            continue
        with pytest.raises(ConfigError, match=r"free beside \d MiB of adapters: lower --kv-cache-memory-bytes or --num-blocks, --max-loras or --max-lora-rank"):
            start(folder, max_loras=2, max_lora_rank=16)

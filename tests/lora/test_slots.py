"""Pinned adapters and their slots, and errors while an adapter is loaded, which end neither the engine nor other requests. On the null platform."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, LoRARequest, RequestError, SamplingParams
from llmx.engine.messages import Control, Controlled
from llmx.lora import adapters as adapters_module
from tests.lora.adapters import random_modules, tiny_checkpoint, write_adapter

PROMPT = list(range(20, 60))
SOME = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model, and adapters a, b, c."""
    made = tmp_path_factory.mktemp("lora")
    weights = tiny_checkpoint(made / "model")
    for seed, name in enumerate("abc"):
        write_adapter(made / name, random_modules(weights, seed), alpha=8.0)
    return made


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder / "model"), platform="null", max_model_len=256, num_blocks=100, enable_lora=True, max_loras=1) as one:
        yield one


def ask(llm: LLM, what: str, name: str, **more: Any) -> Controlled:
    """As the API process asks."""
    return llm.llm_engine.engine.controls.answer(Control(1, what, json.dumps({"name": name, **more})))


def in_slots(llm: LLM) -> list[str]:
    return [one.name for one in llm.llm_engine.engine.adapters.slots._resident]  # type: ignore[attr-defined]


def results(llm: LLM) -> dict[str, Any]:
    done = {}
    while llm.llm_engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0] for output in llm.llm_engine.step() if output.finished}
    return done


def test_requests_that_can_never_get_a_slot_end_and_hold_nobody_back(folder: Path, llm: LLM) -> None:
    engine = llm.llm_engine
    assert ask(llm, "load_lora", "a", path=str(folder / "a"), pin=True).facts["pinned"]
    engine.add_request("b", PROMPT, SOME, lora_request=LoRARequest("b", 1, str(folder / "b")))
    for index in range(70):  # more than may pass one that waits
        engine.add_request(str(index), PROMPT, SOME)
    done = results(llm)
    assert done["b"].finish_reason == "error" and "all 1 slots are pinned: unload a pinned adapter, or start with a larger --max-loras" in str(done["b"].error)
    assert {done[str(index)].finish_reason for index in range(70)} == {"length"}
    assert ask(llm, "pin_lora", "b").kind == "RequestError"
    assert ask(llm, "unload_lora", "a").error is None and ask(llm, "pin_lora", "b").facts["pinned"]


def test_pin_takes_a_slot_at_once(folder: Path, llm: LLM) -> None:
    assert ask(llm, "load_lora", "a", path=str(folder / "a"), pin=True).error is None
    assert in_slots(llm) == ["a"]
    again = ask(llm, "load_lora", "a", path=str(folder / "b"), in_place=True)
    assert again.facts["pinned"] and in_slots(llm) == ["a"]
    assert llm.llm_engine.engine.adapters.find("a").slot == 0  # type: ignore[attr-defined]
    full = ask(llm, "load_lora", "c", path=str(folder / "c"), pin=True)
    assert full.error is not None and "all 1 slots are in use or pinned" in full.error
    assert [one["pinned"] for one in llm.llm_engine.engine.adapters.facts()] == [True, False]  # loaded, and not pinned


def test_what_is_loaded_already_is_pinned_by_a_second_load(folder: Path, llm: LLM) -> None:
    for pin in (False, True):
        assert ask(llm, "load_lora", "a", path=str(folder / "a"), pin=pin).facts["pinned"] is pin
    assert in_slots(llm) == ["a"]


@pytest.mark.parametrize("error", [TypeError("'int' object is not iterable"), MemoryError()])
def test_an_unforeseen_error_is_an_answer(folder: Path, llm: LLM, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(adapters_module, "read_peft", broken)
        said = ask(llm, "load_lora", "a", path=str(folder / "a"))
    assert said.kind == "RequestFailed" and said.error is not None
    assert ("memory ran out while it was read" if isinstance(error, MemoryError) else "TypeError: 'int'") in said.error
    assert ask(llm, "load_lora", "a", path=str(folder / "a")).error is None


def test_memory_that_runs_out_on_the_way_to_a_slot_fails_its_requests_alone(folder: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, right = llm.llm_engine, llm.llm_engine.engine.executor.control

    def control(command: Any) -> Any:
        if command.kind == "lora_add":
            raise MemoryError
        return right(command)

    with monkeypatch.context() as patch:
        patch.setattr(engine.engine.executor, "control", control)
        engine.add_request("a", PROMPT, SOME, lora_request=LoRARequest("a", 1, str(folder / "a")))
        engine.add_request("base", PROMPT, SOME)
        done = results(llm)
    assert done["base"].finish_reason == "length" and "copied to a device slot: host memory ran out" in str(done["a"].error)
    assert llm.generate(PROMPT, SOME, lora_request=LoRARequest("a"))[0].outputs[0].finish_reason == "length"


def test_a_name_that_is_not_there_is_told_with_a_few_that_are(folder: Path, llm: LLM) -> None:
    for index in range(30):
        llm.llm_engine.add_lora(LoRARequest(f"n{index}", 1, str(folder / "a")))
    with pytest.raises(RequestError, match=r"loaded are n0, n1, .*n9 and 20 more$"):
        llm.llm_engine.pin_lora("x")

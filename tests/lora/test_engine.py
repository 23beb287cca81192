"""Adapters in a whole engine: answers as from merged weights, cache keys by content, slots, loading and unloading while requests run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmx import LLM, ConfigError, LoRARequest, RequestError, SamplingParams
from llmx.engine.outputs import RequestOutput
from llmx.errors import ModelNotFound
from tests.lora.adapters import merge, random_modules, tiny_checkpoint, write_adapter

OPTIONS = {"platform": "cpu", "threads": 1, "max_model_len": 512, "num_blocks": 200, "max_num_seqs": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
PROMPT = list(range(20, 70))  # three blocks and a bit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model, and adapters a, b, c; model_a: a merged."""
    made = tmp_path_factory.mktemp("lora")
    weights = tiny_checkpoint(made / "model")
    for seed, name in enumerate("abc"):
        modules = random_modules(weights, seed, rank=4)
        write_adapter(made / name, modules, alpha=8.0)
        if name == "a":
            merge(made / "model", modules, 2.0, made / "model_a")
    return made


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder / "model"), dtype="float32", enable_lora=True, max_loras=2, **OPTIONS) as one:
        yield one


def lora(folder: Path, name: str, **more: object) -> LoRARequest:
    return LoRARequest(name, 1, str(folder / name), **more)  # type: ignore[arg-type]


def facts(output: RequestOutput) -> tuple[object, ...]:
    return tuple((one.token_ids, one.logprobs) for one in output.outputs)


@pytest.fixture(scope="module")
def cold(folder: Path) -> dict[str, tuple[object, ...]]:
    """What each adapter, and "" the base, gives in an engine that has done nothing else."""
    found = {}
    for name in ("", "a", "b", "c"):
        with LLM(str(folder / "model"), dtype="float32", enable_lora=True, **OPTIONS) as one:
            found[name] = facts(one.generate(PROMPT, GREEDY, lora_request=lora(folder, name) if name else None)[0])
    return found


def test_an_adapter_gives_what_merged_weights_give(folder: Path, cold: dict[str, tuple[object, ...]]) -> None:
    with LLM(str(folder / "model_a"), dtype="float32", **OPTIONS) as merged:
        wanted = merged.generate(PROMPT, GREEDY)[0].outputs[0]
    (tokens, logprobs), = cold["a"]  # type: ignore[misc]
    assert tokens == wanted.token_ids and cold["a"] != cold[""]
    np.testing.assert_allclose([row.token.logprob for row in logprobs], [row.token.logprob for row in wanted.logprobs or ()], atol=1e-3)


def test_b091_pages_of_an_adapter_are_its_own(folder: Path, llm: LLM, cold: dict[str, tuple[object, ...]]) -> None:
    seen = []
    for name in ("", "a", "b", "", "a"):
        (output,) = llm.generate(PROMPT, GREEDY, lora_request=lora(folder, name) if name else None)
        assert facts(output) == cold[name]
        seen.append(output.num_cached_tokens)
    assert seen == [0, 0, 0, 48, 48]


def test_b092_what_is_loaded_again_under_a_name_is_new(folder: Path, tmp_path: Path, cold: dict[str, tuple[object, ...]]) -> None:
    place = tmp_path / "t"
    with LLM(str(folder / "model"), dtype="float32", enable_lora=True, **OPTIONS) as one:
        for name, cached in (("a", 0), ("b", 0), ("a", 48)):  # the same content meets its own pages
            place.mkdir(exist_ok=True)
            for file in (folder / name).iterdir():
                (place / file.name).write_bytes(file.read_bytes())
            (output,) = one.generate(PROMPT, GREEDY, lora_request=LoRARequest("t", 1, str(place), load_inplace=True))
            assert facts(output) == cold[name] and output.num_cached_tokens == cached


def test_b093_a_salt_is_no_adapter(folder: Path, llm: LLM, cold: dict[str, tuple[object, ...]]) -> None:
    llm.generate(PROMPT, GREEDY, lora_request=lora(folder, "a"))
    for salt in ("a", llm.llm_engine.engine.adapters.find("a").digest.hex()):  # type: ignore[attr-defined]
        (output,) = llm.generate({"prompt_token_ids": PROMPT, "cache_salt": salt}, GREEDY)
        assert facts(output) == cold[""] and output.num_cached_tokens == 0


def test_more_adapters_than_slots_in_one_call(folder: Path, llm: LLM, cold: dict[str, tuple[object, ...]]) -> None:
    names = ["a", "", "b", "c", "a", "c", "", "b"] * 2
    outputs = llm.generate([PROMPT] * len(names), GREEDY, lora_request=[lora(folder, name) if name else None for name in names])
    assert [facts(output) for output in outputs] == [cold[name] for name in names]
    assert [output.lora_request and output.lora_request.lora_name for output in outputs] == [name or None for name in names]
    used, slots, swaps = llm.llm_engine.engine.adapters.in_use
    assert (used, slots) == (2, 2) and swaps >= 3


def test_answers_that_share_a_prompt_share_the_adapter(folder: Path, llm: LLM) -> None:
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=6, ignore_eos=True)
    (together,) = llm.generate(PROMPT, replace(params, n=3), lora_request=lora(folder, "a"))
    single = [llm.generate(PROMPT, replace(params, seed=5 + i), lora_request=lora(folder, "a"))[0] for i in range(3)]
    assert [one.token_ids for one in together.outputs] == [one.outputs[0].token_ids for one in single]


def test_unloading_leaves_those_that_had_begun(folder: Path, llm: LLM, cold: dict[str, tuple[object, ...]]) -> None:
    engine = llm.llm_engine
    engine.add_lora(lora(folder, "a"))
    engine.add_request("one", PROMPT, GREEDY, lora_request=LoRARequest("a"))
    engine.step()
    engine.remove_lora("a")
    with pytest.raises(ModelNotFound, match="adapter 'a' is not loaded"):
        engine.add_request("two", PROMPT, GREEDY, lora_request=LoRARequest("a"))
    done = None
    while engine.has_unfinished_requests():
        done = next(iter(engine.step()), done)
    assert done is not None and facts(done) == cold["a"]
    assert llm.generate(PROMPT, GREEDY, lora_request=lora(folder, "a"))[0].outputs[0].token_ids == cold["a"][0][0]  # type: ignore[index]


def test_a_pinned_adapter_keeps_its_slot(folder: Path) -> None:
    with LLM(str(folder / "model"), dtype="float32", lora_modules=[f"a={folder / 'a'}"], max_loras=1, **OPTIONS) as one:
        engine = one.llm_engine
        assert engine.list_loras() == ["a"] and engine.pin_lora("a")
        engine.add_request("b", PROMPT, GREEDY, lora_request=lora(folder, "b"))
        (output,) = engine.step()  # nobody may take the slot
        assert output.finished and "all 1 slots are pinned" in str(output.outputs[0].error)
        with pytest.raises(RequestError, match="--max-loras"):
            engine.pin_lora("b")
        engine.remove_lora("a")
        assert engine.pin_lora("b")


@pytest.mark.parametrize("platform", ["cpu", "torch"])
def test_a_draft_model_guesses_without_the_adapter(folder: Path, platform: str, cold: dict[str, tuple[object, ...]]) -> None:
    """And the model verifies with it: the tokens are those of no drafts."""
    options = {**OPTIONS, "platform": platform, "dtype": "float32", "enable_lora": True}
    spec = {"method": "draft_model", "model": str(folder / "model"), "num_speculative_tokens": 3}
    with LLM(str(folder / "model"), speculative_config=spec, **options) as one:
        drafting = one.llm_engine.engine.scheduler.drafting
        assert drafting is not None
        drafting.fixed = True  # every step brings drafts
        outputs = one.generate([PROMPT] * 3, GREEDY, lora_request=[None, lora(folder, "a"), lora(folder, "b")])
        assert [output.outputs[0].token_ids for output in outputs] == [cold[name][0][0] for name in ("", "a", "b")]  # type: ignore[index]
        assert outputs[0].outputs[0].num_accepted_tokens > 0


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_quantised_bases(folder: Path, scheme: str) -> None:
    with LLM(str(folder / "model"), quantization=scheme, enable_lora=True, **OPTIONS) as one:
        alone = [facts(one.generate(PROMPT, GREEDY, lora_request=lora(folder, name))[0]) for name in "abc"]
        mixed = one.generate([PROMPT] * 4, GREEDY, lora_request=[None, *(lora(folder, name) for name in "abc")])
        assert [facts(output) for output in mixed[1:]] == alone and len({str(one) for one in alone}) == 3


def test_what_is_refused(folder: Path, llm: LLM) -> None:
    with pytest.raises(ConfigError, match="lora_modules: adapter 'x'.*is no folder"):
        LLM(str(folder / "model"), lora_modules=["x=/nowhere"], **OPTIONS)
    for options, words in (
        ({"enable_lora": True, "max_lora_rank": 2}, "rank is 4, but --max-lora-rank is 2"),
        ({}, "adapters are off: start with --enable-lora"),
    ):
        with LLM(str(folder / "model"), **OPTIONS, **options) as one, pytest.raises(RequestError, match=words):
            one.generate(PROMPT, GREEDY, lora_request=lora(folder, "a"))
    with pytest.raises(RequestError, match="lora_request is a str: give a LoRARequest"):
        llm.generate(PROMPT, GREEDY, lora_request="a")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="2 prompts but 1 lora_request"):
        llm.generate([PROMPT, PROMPT], GREEDY, lora_request=[None])

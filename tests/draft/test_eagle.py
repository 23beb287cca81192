"""EAGLE heads: a drafter that reads the model's rows changes how many steps an answer takes, and nothing else."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from llmx import SamplingParams
from llmx.engine.outputs import RequestOutput
from llmx.errors import ConfigError, ModelError
from tests.draft.engines import PROMPTS, K, facts, guesses_of, open_llm, params, run_with_lengths
from tests.draft.moody import write_moody_target
from tests.draft.oracle import eagle_guess, write_eagle, write_random_eagle
from tests.structured.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def moody(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_moody_target(tmp_path_factory.mktemp("moody"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def heads(moody: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    made = {right: write_eagle(moody, folder / right, right) for right in ("all", "half", "none")}
    return {**made, "random": write_random_eagle(tiny, folder / "random")}


def _spec(heads: dict[str, Path], right: str) -> dict[str, Any]:
    return {"method": "eagle", "model": str(heads[right])}


@pytest.fixture(scope="module")
def plain(moody: Path) -> Iterator[list[RequestOutput]]:
    with open_llm(moody) as llm:
        yield llm.generate(PROMPTS, params(), use_tqdm=False)


@pytest.mark.parametrize(
    ("right", "options"),
    [
        ("all", {}),
        ("half", {"max_num_batched_tokens": 16}),
        ("half", {"num_blocks": 12, "max_model_len": 160, "max_num_seqs": 4}),
        ("none", {"enable_prefix_caching": False}),
    ],
    ids=["plain", "chunked", "short", "cold"],
)
def test_answers_are_the_same(moody: Path, heads: dict[str, Path], plain: list[RequestOutput], right: str, options: dict[str, Any]) -> None:
    with open_llm(moody, "cpu", _spec(heads, right), **options) as llm:
        for _ in range(2):  # the second time out of the prefix cache
            assert facts(llm.generate(PROMPTS, params(), use_tqdm=False)) == facts(plain)
        stats = llm._engine.stats()
        assert stats.draft_tokens > 300
        llm._engine.kv.check_integrity([])
        if "num_blocks" in options:
            assert stats.preemptions > 0


@pytest.mark.parametrize("platform", ["cpu", "torch"])
@pytest.mark.parametrize(("right", "low", "high"), [("all", 0.99, 1.0), ("half", 0.2, 0.8), ("none", 0.0, 0.01)])
def test_as_many_are_accepted_as_the_head_is_right(moody: Path, heads: dict[str, Path], platform: str, right: str, low: float, high: float) -> None:
    with open_llm(moody, platform) as llm:
        wanted = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    with open_llm(moody, platform, _spec(heads, right)) as llm:
        lengths = run_with_lengths(llm, PROMPTS, GREEDY)
        got = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        stats = llm._engine.stats()
    assert [output.outputs[0].token_ids for output in got] == [output.outputs[0].token_ids for output in wanted]
    assert low <= stats.accepted_per_position[0] / stats.drafts <= high, stats
    assert lengths - {K - 1} == {"all": {0, K}, "half": set(range(K + 1)) - {K - 1}, "none": {0}}[right]


@pytest.mark.parametrize("platform", ["cpu", "torch"])
def test_guesses_are_those_of_the_published_code(tiny: Path, heads: dict[str, Path], platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, out of the prefix cache, side by side and after steps without guesses."""
    oracle, asked = eagle_guess(tiny, heads["random"]), SamplingParams(seed=9, max_tokens=24, ignore_eos=True)
    with open_llm(tiny, platform, _spec(heads, "random"), max_num_batched_tokens=32) as llm:
        drafting = llm._engine.scheduler.drafting
        assert drafting is not None
        seen = guesses_of(llm, PROMPTS[:4], asked, monkeypatch)
        seen += guesses_of(llm, PROMPTS[:4], asked, monkeypatch)
        llm.llm_engine.add_request("late", "+abc" * 12, asked)
        drafting.enabled = False
        for _ in range(8):
            llm.llm_engine.step()
        drafting.enabled = True
        seen += guesses_of(llm, ["zy" * 20], asked, monkeypatch)
    assert len(seen) > 150
    equal = sum(oracle(tokens, len(guess)) == guess for tokens, guess in seen)
    assert equal >= 0.97 * len(seen), f"{equal} of {len(seen)}"  # two sums in another order may tie


def test_right_drafts_save_as_many_steps_as_they_can(moody: Path, heads: dict[str, Path]) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True)
    with open_llm(moody, "cpu", _spec(heads, "all"), max_num_batched_tokens=32) as llm:
        for prompt in PROMPTS:
            for _ in range(2):
                before, (output,) = llm._engine.stats().steps, llm.generate(prompt, greedy, use_tqdm=False)
                chunks = -(-max(len(output.prompt_token_ids) - output.num_cached_tokens, 1) // 32)
                assert llm._engine.stats().steps - before == chunks + 8, prompt  # 40 tokens, five in a step


def test_drafting_switched_at_random(moody: Path, heads: dict[str, Path], plain: list[RequestOutput]) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        options = {"max_num_batched_tokens": rng.choice([16, 64]), "num_blocks": rng.choice([22, 200])}
        with open_llm(moody, "cpu", _spec(heads, rng.choice(["all", "half"])), **options) as llm:
            drafting = llm._engine.scheduler.drafting
            assert drafting is not None
            waiting, done = list(range(len(PROMPTS))), dict[str, RequestOutput]()
            rng.shuffle(waiting)
            while waiting or llm.llm_engine.has_unfinished_requests():
                if waiting and rng.random() < 0.4:
                    index = waiting.pop()
                    llm.llm_engine.add_request(str(index), PROMPTS[index], params()[index])
                drafting.enabled = rng.random() < 0.6
                done |= {output.request_id: output for output in llm.llm_engine.step() if output.finished}
            assert facts([done[str(index)] for index in range(len(PROMPTS))]) == facts(plain)


def _changed(head: Path, folder: Path, config: dict[str, Any], **tensors: Any) -> Path:
    shutil.copytree(head, folder)
    (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), **config}))
    weights = {**load_file(folder / "model.safetensors"), **tensors}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors")
    return folder


def test_what_is_wrong_is_named(moody: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    fc = load_file(heads["all"] / "model.safetensors")["fc.weight"]
    for number, (error, word, config, tensors) in enumerate(
        [
            (ConfigError, "hidden_size 32 and vocab_size 384", {"hidden_size": 32}, {}),
            (ModelError, "tensor 'fc.weight' is missing", {}, {"fc.weight": None}),
            (ModelError, r"'fc.weight' is \[64, 64\]", {}, {"fc.weight": fc[:, :64].contiguous()}),
            (ModelError, "1 tensors have no place in such a drafter: d2t", {}, {"d2t": fc[0].contiguous()}),
            (ModelError, "num_attention_heads", {"num_attention_heads": 0}, {}),
        ]
    ):
        folder = _changed(heads["all"], tmp_path / str(number), config, **tensors)
        with pytest.raises(error, match=word):
            open_llm(moody, "cpu", {"method": "eagle", "model": str(folder)})
    with pytest.raises(ConfigError, match="model is missing: name the folder of the EAGLE checkpoint"):
        open_llm(moody, "cpu", {"method": "eagle"})
    with pytest.raises(ConfigError, match="quantization is no setting of 'eagle'"):
        open_llm(moody, "cpu", {"method": "eagle", "model": str(heads["all"]), "quantization": "int8"})


def test_names_with_model_before_them(moody: Path, heads: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(heads["all"], tmp_path / "named")
    weights = load_file(tmp_path / "named" / "model.safetensors")
    shared = load_file(moody / "model.safetensors")["model.embed_tokens.weight"]  # the model's own once more
    save_file({f"model.{name}": tensor for name, tensor in {**weights, "embed_tokens.weight": shared}.items()}, tmp_path / "named" / "model.safetensors")
    with open_llm(moody, "cpu", {"method": "eagle", "model": str(tmp_path / "named")}) as llm:
        llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
        stats = llm._engine.stats()
    assert stats.accepted_per_position[0] == stats.drafts > 10

"""Draft models with other tokens than the target's: they are right where they can be, and change no answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, SamplingParams
from llmx.config import ModelConfig
from llmx.draft.model import DraftModel
from llmx.draft.vocabulary import Translation
from llmx.errors import ConfigError
from llmx.models.builtin import builtin_models
from llmx.models.load import load_model
from llmx.tokens.tokenizer import Tokenizer
from tests.draft.draft_models import tie, write_draft, write_other_vocabulary
from tests.draft.engines import PROMPTS, facts, open_llm, params
from tests.draft.head_files import write_pard

WITHOUT = ("ab", "abc", "tr", "true", "k", "x")
TEXT = list(range(276))  # ids of the tiny target that have a text: the others are in no other vocabulary


def _spec(path: Path) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(path)}


@pytest.mark.parametrize("platform", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("without", "tied", "low", "high"), [((), False, 0.99, 1.0), ((), True, 0.99, 1.0), (WITHOUT, False, 0.3, 0.99)], ids=["all", "tied", "some"]
)
def test_guesses_are_right_where_the_tokens_are_there(
    tiny: Path, tmp_path: Path, platform: str, without: tuple[str, ...], tied: bool, low: float, high: float
) -> None:
    target = tie(tiny, tmp_path / "tied") if tied else tiny
    draft = write_other_vocabulary(target, tmp_path / "draft", without)
    greedy = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, allowed_token_ids=TEXT)
    with open_llm(target, platform) as llm:
        wanted = llm.generate(PROMPTS, greedy, use_tqdm=False)
    with open_llm(target, platform, _spec(draft)) as llm:
        got = llm.generate(PROMPTS, greedy, use_tqdm=False)
        stats = llm._engine.stats()
    assert [output.outputs[0].token_ids for output in got] == [output.outputs[0].token_ids for output in wanted]
    assert low <= stats.accepted_per_position[0] / stats.drafts <= high, stats


def test_answers_are_the_same(tiny: Path, tmp_path: Path, plain: Any) -> None:
    draft = write_other_vocabulary(tiny, tmp_path / "draft", WITHOUT)
    with open_llm(tiny, "cpu", _spec(draft), max_num_batched_tokens=16) as llm:
        for _ in range(2):
            assert facts(llm.generate(PROMPTS, params(), use_tqdm=False)) == plain(tiny)
        assert llm._engine.stats().draft_tokens > 200


def test_a_model_of_another_family_drafts(tiny: Path) -> None:
    """The embedded model, quantised, guesses for one whose tokens are bytes."""
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    answers = []
    for spec in (None, {**_spec(Path("smollm2-135m-instruct")), "num_speculative_tokens": 2}):
        with open_llm(tiny, "cpu", spec, max_num_seqs=1) as llm:
            answers.append(llm.generate("One two three", greedy, use_tqdm=False)[0].outputs[0])
    assert answers[0].token_ids == answers[1].token_ids and answers[1].num_draft_tokens > 0


def test_vocabularies_that_share_too_little_are_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="has 250 of the 49152 tokens of .*, less than 5%: .*: take a draft model of a closer vocabulary"):
        LLM(platform="cpu", threads=1, speculative_config=_spec(tiny))


def test_starts_and_ends_of_texts_stand_for_each_other(tiny: Path, tmp_path: Path) -> None:
    here, there = shutil.copytree(tiny, tmp_path / "target"), write_other_vocabulary(tiny, tmp_path / "draft", renamed={"<s>": "<begin>", "</s>": "<end>"})
    for folder, name in ((here, "<s>"), (there, "<begin>")):
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": name}))
    one, two = (Tokenizer.load(load_model(ModelConfig(source=str(path))).summary.tokenizer) for path in (here, there))
    found = Translation.of(one, one.vocab_size, two, two.vocab_size)
    assert one.bos_id is not None and two.bos_id is not None
    assert [found.reads[one.bos_id], found.reads[one.eos_ids[0]]] == [two.bos_id, two.eos_ids[0]]
    assert [found.says[two.bos_id], found.says[two.eos_ids[0]]] == [one.bos_id, one.eos_ids[0]]
    assert (found.exact, found.texts) == (274, 276)


def test_what_has_no_counterpart_is_translated_in_part(tiny: Path, tmp_path: Path) -> None:
    folder = write_other_vocabulary(tiny, tmp_path / "draft", ("ab", "abc", "x"))  # of 277 tokens with a text
    here, there = (load_model(ModelConfig(source=str(path))).summary for path in (tiny, folder))
    one, two = Tokenizer.load(here.tokenizer), Tokenizer.load(there.tokenizer)
    found = Translation.of(one, here.vocab_size, two, there.vocab_size)
    assert len(found.reads) == here.vocab_size and len(found.says) == there.vocab_size == found.exact == found.texts - 3
    assert all(one.token_bytes(token) == two.token_bytes(index) for index, token in enumerate(found.says))
    assert two.token_bytes(found.reads[one.encode("abc")[0]]) == b"c"  # the longest end that is there
    assert found.reads[one.encode("x")[0]] == found.reads[here.vocab_size - 1] == two.eos_ids[0]
    back = Translation.of(two, there.vocab_size, one, here.vocab_size)
    assert two.token_bytes(back.says[one.encode("abc")[0]]) == b"a"  # the longest beginning


def test_another_vocabulary_is_told(tiny: Path, tmp_path: Path) -> None:
    loaded, draft = load_model(ModelConfig(source=str(tiny))), write_other_vocabulary(tiny, tmp_path / "draft", WITHOUT)
    config = open_llm(tiny).llm_engine.config
    registry = builtin_models()
    told = DraftModel({"model": str(draft)}).join(loaded, config, registry)
    assert any("has another vocabulary: it has 271 of the 276 tokens of" in warning for warning in told.warnings), told.warnings
    assert told.bundle.digest != DraftModel({"model": str(write_draft(tiny, tmp_path / "same", "all"))}).join(loaded, config, registry).bundle.digest


def test_parallel_drafting_needs_the_same_vocabulary(tiny: Path, tmp_path: Path) -> None:
    draft = write_pard(write_other_vocabulary(tiny, tmp_path / "other", WITHOUT), tmp_path / "pard")
    with pytest.raises(ConfigError, match="another vocabulary than .*: parallel drafting needs the same"):
        open_llm(tiny, "cpu", {"method": "pard", "model": str(draft)})

"""The engine's side of pooling: one step per text, bits that do not depend on neighbours, requests that fail alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmx import LLM, PoolingParams, RequestError, SamplingParams
from llmx.engine.messages import Add
from llmx.errors import PromptTooLong, RequestFailed
from tests.pooling.checkpoints import TEXTS, write

MANY = [" ".join(["paris", "old", "a", "yellow", "france"][(i * j) % 5] for j in range(1 + 7 * i % 50)) for i in range(40)]


@pytest.fixture(scope="module", params=["bert", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write(path, request.param, "mean_tokens")
    return path


def start(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), **{"platform": "cpu", "threads": 1, "num_blocks": 600, **options})


def bits(llm: LLM, texts: list[str]) -> list[bytes]:
    return [one.outputs.data.tobytes() for one in llm.encode(texts, use_tqdm=False)]


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_text_gives_the_same_bits_alone_and_among_others(folder: Path, dtype: str) -> None:
    with start(folder, dtype=dtype) as llm:
        together = bits(llm, MANY)
        assert [bits(llm, [text])[0] for text in MANY] == together
        assert bits(llm, MANY[::-1])[::-1] == together
        assert len(set(together)) > 30
    with start(folder, dtype=dtype, threads=2, max_num_batched_tokens=64, num_blocks=9) as llm:  # few texts per step, pages used again and again
        assert bits(llm, MANY) == together


def test_fused_and_unfused_give_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(folder) as llm:
        fused = bits(llm, MANY[:8])
    monkeypatch.setenv("LLMX_CPU_FUSE", "0")
    with start(folder) as llm:
        assert bits(llm, MANY[:8]) == fused


def test_a_text_is_never_cut_over_two_steps(folder: Path) -> None:
    with start(folder, max_num_batched_tokens=40) as llm:
        steps: list[list[tuple[int, int]]] = []
        submit = llm.llm_engine.engine.executor.submit

        def watched(step: Any) -> Any:
            steps.append(list(zip(step.start.tolist(), step.q.tolist(), strict=True)))
            return submit(step)

        llm.llm_engine.engine.executor.submit = watched  # type: ignore[method-assign]
        short = [text for text in MANY if len(text.split()) <= 38]
        outputs = llm.encode(short, use_tqdm=False)
        rows = [row for step in steps for row in step]
        assert all(begin == 0 for begin, _ in rows) and sorted(q for _, q in rows) == sorted(len(one.prompt_token_ids) for one in outputs)
        assert all(sum(q for _, q in step) <= 40 for step in steps)
        with pytest.raises(PromptTooLong, match="52 tokens, and this model computes a prompt in one step of at most 40.*--max-num-batched-tokens"):
            llm.encode("a " * 50)
        assert llm.llm_engine.engine.kv.blocks_held == 0


def test_steps_are_made_long_enough_for_the_longest_text(folder: Path) -> None:
    with start(folder) as llm:
        assert llm.info.max_num_batched_tokens >= llm.info.max_model_len == 64
        assert len(llm.encode("a " * 62, use_tqdm=False)[0].prompt_token_ids) == 64


def test_the_prefix_cache_gives_no_row_of_another_text(folder: Path) -> None:
    """The same 32 tokens twice, then with another end: nothing is read from pages of before, whole texts need all their rows."""
    with start(folder) as llm:
        first, again = bits(llm, ["paris " * 40]), bits(llm, ["paris " * 40])
        assert first == again and bits(llm, ["paris " * 40 + "old"]) != first
        with start(folder, enable_prefix_caching=False) as plain:
            assert bits(plain, ["paris " * 40]) == first


def test_a_decoder_pooled_by_its_last_row_reads_its_prefix_cache(tmp_path: Path) -> None:
    write(tmp_path, "llama")
    text = "paris france " * 25
    with start(tmp_path, max_num_batched_tokens=16) as llm:  # in chunks: the row that is wanted comes with the last
        (cold,) = llm.encode(text, use_tqdm=False)
        (warm,) = llm.encode(text, use_tqdm=False)
        assert cold.num_cached_tokens == 0 and warm.num_cached_tokens >= 32
        assert cold.outputs.data.tobytes() == warm.outputs.data.tobytes()


def test_requests_that_the_model_cannot_serve_change_nothing(folder: Path) -> None:
    with start(folder) as llm:
        engine = llm.llm_engine.engine
        with pytest.raises(RequestError, match="gives vectors, no text"):
            engine.add(Add("text", [5, 6], SamplingParams()))
        with pytest.raises(RequestError, match="no tokens"):
            engine.add(Add("empty", [], SamplingParams(max_tokens=0), pooling=PoolingParams()))
        with pytest.raises(RequestError, match="task is 'classify': this model does embed, token_embed"):
            llm.encode("a", pooling_task="classify")
        with pytest.raises(RequestError, match="token id 40"):
            llm.encode([[5, 40]])
        assert not engine.has_work and len(llm.embed(TEXTS, use_tqdm=False)) == len(TEXTS)


def test_rows_that_are_no_numbers_fail_their_request_alone(folder: Path) -> None:
    with start(folder) as llm:
        engine = llm.llm_engine.engine
        collect = engine.executor.collect

        def spoiled(ticket: Any) -> Any:
            out = collect(ticket)
            out.hidden["pooled"][:1] = np.nan
            return out

        engine.executor.collect = spoiled  # type: ignore[method-assign]
        for name, prompt in (("bad", [5]), ("good", [5, 6, 7])):  # rows stand in a step the shortest first
            engine.add(Add(name, prompt, SamplingParams(max_tokens=0), pooling=PoolingParams()))
        news = {one.id: one for one in engine.step()}
        assert news["bad"].error is not None and "NaN" in news["bad"].error and news["bad"].pooled is None
        assert news["good"].error is None and news["good"].pooled is not None
        assert engine.kv.blocks_held == 0 and not engine.has_work


def test_one_that_fails_takes_no_output_of_the_others_along(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(folder) as llm:
        engine = llm.llm_engine
        step = engine.engine.step

        def failing() -> list[Any]:
            items = step()
            for item in items:
                if item.id in ("b", "d"):
                    item.pooled, item.finish_reason, item.error = None, "error", f"{item.id} failed"
            return items

        monkeypatch.setattr(engine.engine, "step", failing)
        for name in "abcd":
            engine.add_pooling_request(name, [5, 6, 7], PoolingParams(task="embed"))
        given, errors = [], []
        while engine.has_unfinished_requests():
            try:
                given += [output.request_id for output in engine.step()]
            except RequestFailed as error:
                errors.append(str(error))
        assert sorted(given) == ["a", "c"] and sorted(errors) == ["b failed", "d failed"]
        assert engine.get_num_unfinished_requests() == 0

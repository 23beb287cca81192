"""Vectors and scores of tiny models equal those of transformers, on the native and on the torch executor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmx import LLM, AsyncLLMEngine, ConfigError, ModelError, PlatformError, PoolingParams, RequestError
from llmx.weights.hub_name import HubName, select_files
from llmx_cpu.native import ISA_NAMES, best_isa
from tests.pooling.checkpoints import PAIRS, TEXTS, rows, vectors, write

CPU: dict[str, Any] = {"platform": "cpu", "threads": 1}
EXECUTORS: dict[str, dict[str, Any]] = {
    "cpu": CPU, "torch": {"platform": "torch", "device": "cpu"}, "tpu": {"platform": "tpu", "tpu_backend": "cpu", "max_num_batched_tokens": 64},
}  # fmt: skip
RUNS = ["cpu", "torch", pytest.param("tpu", marks=pytest.mark.slow)]  # compiling takes seconds
CLOSE = 1e-4


def start(folder: Path, executor: str = "cpu", **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", num_blocks=400, **EXECUTORS[executor], **options)


def embedded(llm: LLM, texts: Any, **options: Any) -> np.ndarray:
    return np.array([one.outputs.embedding for one in llm.embed(texts, use_tqdm=False, **options)])


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return np.asarray(powers / powers.sum())


@pytest.mark.parametrize("executor", RUNS)
@pytest.mark.parametrize(
    ("name", "pooling", "kind", "options"),
    [
        ("bert", "mean_tokens", "mean", {}),
        ("bert", "cls_token", "cls", {}),
        ("bert", None, "cls", {}),
        ("bert", "mean_tokens", "last", {"pooler_config": {"pooling_type": "LAST"}}),
        ("bert_masked", "mean_tokens", "mean", {}),
        ("roberta", "mean_tokens", "mean", {}),
        ("distilbert", "cls_token", "cls", {}),
        ("llama", None, "last", {}),
        ("llama", "mean_tokens", "mean", {}),
        ("qwen3", None, "last", {"runner": "pooling"}),
        ("qwen3", "lasttoken", "last", {}),
        ("qwen3", None, "cls", {"convert": "embed", "pooler_config": {"pooling_type": "CLS"}}),
    ],
)
def test_vectors(tmp_path: Path, executor: str, name: str, pooling: str | None, kind: str, options: dict[str, Any]) -> None:
    model = write(tmp_path, name, pooling)
    with start(tmp_path, executor, **options) as llm:
        assert np.abs(embedded(llm, TEXTS) - vectors(model, tmp_path, TEXTS, kind)).max() < CLOSE


@pytest.mark.parametrize("level", ISA_NAMES[: ISA_NAMES.index(best_isa())])
def test_vectors_at_the_lower_levels(tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMX_CPU_ISA", level)
    model = write(tmp_path, "bert", "mean_tokens")
    with start(tmp_path) as llm:
        assert np.abs(embedded(llm, TEXTS) - vectors(model, tmp_path, TEXTS, "mean")).max() < CLOSE


@pytest.mark.parametrize("executor", RUNS)
@pytest.mark.parametrize("name", ["bert_labels", "distilbert_labels", "llama_labels"])
def test_labels(tmp_path: Path, executor: str, name: str) -> None:
    model = write(tmp_path, name)
    scores = [rows(model, tmp_path, text) for text in TEXTS]
    with start(tmp_path, executor) as llm:
        assert llm.info.pooling is not None and llm.info.pooling.labels == ("no", "yes", "perhaps")
        found = [one.outputs.probs for one in llm.classify(TEXTS, use_tqdm=False)]
        assert np.abs(np.array(found) - np.array([softmax(score) for score in scores])).max() < CLOSE
        raw = llm.classify(TEXTS, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
        assert np.abs(np.array([one.outputs.probs for one in raw]) - np.array(scores)).max() < CLOSE * 10
        with pytest.raises(RequestError, match="this model does classify"):
            llm.embed("a")
        with pytest.raises(RequestError, match="3: use classify"):
            llm.score("a", "b")


@pytest.mark.parametrize("executor", RUNS)
@pytest.mark.parametrize("name", ["bert_cross", "roberta_cross"])
def test_scores_of_a_cross_encoder(tmp_path: Path, executor: str, name: str) -> None:
    model = write(tmp_path, name)
    wanted = [float(1 / (1 + np.exp(-rows(model, tmp_path, *pair)[0]))) for pair in PAIRS]
    with start(tmp_path, executor) as llm:
        found = llm.score([a for a, _ in PAIRS], [b for _, b in PAIRS], use_tqdm=False)
        assert np.abs(np.array([one.outputs.score for one in found]) - np.array(wanted)).max() < CLOSE
        one = llm.score(PAIRS[0][0], [PAIRS[0][1], "france"], use_tqdm=False)
        assert one[0].outputs.score == found[0].outputs.score and len(one) == 2


def test_token_types_matter(tmp_path: Path) -> None:
    """A pair whose second text were computed with type 0 would score otherwise: the test above sees types."""
    model = write(tmp_path, "bert_cross")
    with start(tmp_path) as llm:
        ids, second = llm.tokenizer.encode_texts(*PAIRS[0])
        assert second > 0
        flat = llm.encode([{"prompt_token_ids": ids}], use_tqdm=False)[0].outputs.data
        paired = llm.score(*PAIRS[0], use_tqdm=False)[0].outputs.score
    assert abs(float(flat[0]) - paired) > 1e-3
    assert model.config.type_vocab_size == 2


def test_scores_of_a_bi_encoder_are_cosines(tmp_path: Path) -> None:
    model = write(tmp_path, "bert", "mean_tokens")
    a, b = vectors(model, tmp_path, TEXTS[:1], "mean"), vectors(model, tmp_path, TEXTS, "mean")
    with start(tmp_path) as llm:
        found = [one.outputs.score for one in llm.score(TEXTS[0], TEXTS, use_tqdm=False)]
        assert np.abs(np.array(found) - (a @ b.T)[0]).max() < CLOSE
        with pytest.raises(RequestError, match="2 texts against 3"):
            llm.score(TEXTS[:2], TEXTS[:3])


def test_rows_of_tokens_and_raw_vectors(tmp_path: Path) -> None:
    model = write(tmp_path, "bert", "mean_tokens")
    wanted = rows(model, tmp_path, TEXTS[0])
    with start(tmp_path) as llm:
        raw = PoolingParams(use_activation=False)
        (found,) = llm.encode(TEXTS[0], raw, pooling_task="token_embed", use_tqdm=False)
        assert np.abs(found.outputs.data - wanted).max() < CLOSE * 10
        (mean,) = llm.encode(TEXTS[0], raw, use_tqdm=False)
        assert np.abs(mean.outputs.data - wanted.mean(0)).max() < CLOSE * 10
        late = llm.score(TEXTS[0], TEXTS[1], pooling_params=None, use_tqdm=False)[0].outputs.score
    with start(tmp_path, pooler_config={"pooling_type": "ALL"}) as llm:  # late interaction: every token's best match
        (one,) = llm.encode(TEXTS[0], use_tqdm=False)
        assert np.abs(np.linalg.norm(one.outputs.data, axis=1) - 1).max() < 1e-5
        a, b = (rows(model, tmp_path, text) for text in TEXTS[:2])
        a, b = a / np.linalg.norm(a, axis=1, keepdims=True), b / np.linalg.norm(b, axis=1, keepdims=True)
        found_late = llm.score(TEXTS[0], TEXTS[1], use_tqdm=False)[0].outputs.score
        assert abs(found_late - float((a @ b.T).max(1).sum())) < CLOSE * 10
        assert found_late != late


def test_without_normalize_vectors_keep_their_length(tmp_path: Path) -> None:
    model = write(tmp_path, "bert", "mean_tokens", normalize=False)
    with start(tmp_path) as llm:
        assert np.abs(embedded(llm, TEXTS) - vectors(model, tmp_path, TEXTS, "mean", normalize=False)).max() < CLOSE * 10


def test_dimensions_of_a_model_trained_for_it(tmp_path: Path) -> None:
    model = write(tmp_path, "bert", "mean_tokens", matryoshka_dimensions=[8, 16, 32])
    wanted = vectors(model, tmp_path, TEXTS, "mean")[:, :8]
    with start(tmp_path) as llm:
        found = embedded(llm, TEXTS, pooling_params=PoolingParams(dimensions=8))
        assert np.abs(found - wanted / np.linalg.norm(wanted, axis=1, keepdims=True)).max() < CLOSE
        for wrong in (12, 33):
            with pytest.raises(RequestError, match=f"dimensions is {wrong}.*give 8, 16, 32"):
                llm.embed("a", pooling_params=PoolingParams(dimensions=wrong))


def test_long_texts_are_refused_or_cut_with_their_end_marks(tmp_path: Path) -> None:
    model = write(tmp_path, "bert", "mean_tokens")
    long, kept = "paris france " * 50, "paris france " * 31
    with start(tmp_path) as llm:
        with pytest.raises(RequestError, match="102 tokens"):
            llm.embed(long)
        cut = embedded(llm, long, tokenization_kwargs={"truncate_prompt_tokens": -1})
        assert np.abs(cut - vectors(model, tmp_path, [kept], "mean")).max() < CLOSE
        ids, second = llm.tokenizer.encode_texts("a " * 30, "b " * 50, most=21)
        assert (len(ids), ids[0], ids[-1], second) == (21, 2, 3, 11)  # nine tokens of each, and three marks


def test_models_that_cannot_be_what_is_asked(tmp_path: Path) -> None:
    write(tmp_path, "bert", "max_tokens")
    with pytest.raises(ModelError, match="pools by max_tokens"):
        start(tmp_path)
    (tmp_path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for options, why in (({"runner": "generate"}, "gives vectors and no text"), ({"pooler_config": {"pooling_type": "max"}}, "can be cls, last, mean, all")):
        with pytest.raises(ConfigError, match=why):
            start(tmp_path, **options)
    with start(tmp_path) as llm, pytest.raises(RequestError, match="gives vectors, no text"):
        llm.generate("a")


def test_a_model_of_the_hub_comes_with_the_files_that_say_how_it_is_pooled() -> None:
    files = ["config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "onnx/config.json"]
    side = select_files(HubName("org/name"), files).side
    assert {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"} <= set(side) and "onnx/config.json" not in side


def test_the_null_platform_says_that_it_gives_no_vectors(tmp_path: Path) -> None:
    write(tmp_path, "bert")
    with pytest.raises(PlatformError, match="this model vectors or scores"):
        LLM(str(tmp_path), platform="null")


def test_an_encoder_keeps_no_more_kv_than_one_step_needs(tmp_path: Path) -> None:
    write(tmp_path, "bert")
    with LLM(str(tmp_path), platform="cpu", threads=1, max_num_seqs=8) as llm:
        assert llm.info.num_kv_blocks == 1024 // 16 + 8
        assert len(llm.embed(TEXTS * 10, use_tqdm=False)) == 40


def test_the_asynchronous_face_has_encode(tmp_path: Path) -> None:
    model = write(tmp_path, "bert", "mean_tokens")

    async def ask() -> np.ndarray:
        engine = AsyncLLMEngine.from_engine_args({"model": str(tmp_path), "dtype": "float32", **CPU})
        try:
            outputs = [[output async for output in engine.encode(text, PoolingParams())] for text in TEXTS]
            return np.array([one.outputs.data for (one,) in outputs])
        finally:
            await engine.close()

    assert np.abs(asyncio.run(ask()) - vectors(model, tmp_path, TEXTS, "mean")).max() < CLOSE

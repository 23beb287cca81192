"""What LLM does with a model that gives vectors or scores: encode, embed, classify, score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmx.engine.pooling_input import pooling_input, texts_input
from llmx.engine.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    similarity,
)
from llmx.engine.request_input import Prompt, as_batch, one_per_prompt
from llmx.errors import RequestError
from llmx.lora.request import LoRARequest
from llmx.pooling_params import PoolingConfig, PoolingParams, check_pooling

if TYPE_CHECKING:
    from llmx.engine.llm_engine import LLMEngine

__all__ = ["PoolingCalls"]

Collect = Callable[[list[str], Any], list[Any]]
Params = PoolingParams | Sequence[PoolingParams] | None


class PoolingCalls:
    """Made by LLM. collect: steps the engine until requests have ended. next_id: a fresh request id."""

    def __init__(self, engine: LLMEngine, collect: Collect, next_id: Callable[[], str], lora: str = "") -> None:
        self._engine, self._collect, self._next_id, self._lora = engine, collect, next_id, lora

    def using(self, lora_request: LoRARequest | None) -> PoolingCalls:
        """The same with an adapter, loaded if it is not yet; None: without. Raises RequestError."""
        return PoolingCalls(self._engine, self._collect, self._next_id, self._engine.adapter_of(lora_request))

    def encode(self, prompts: Any, params: Params, task: str | None, tokenization: Mapping[str, Any] | None, bar: Any) -> list[PoolingRequestOutput]:
        """One output per prompt."""
        batch = as_batch(prompts)
        each = one_per_prompt("pooling_params", params, len(batch), PoolingParams, PoolingParams())
        if task is not None:
            each = [replace(one, task=task) for one in each]
        return self._run([self._parsed(prompt, one, tokenization) for prompt, one in zip(batch, each, strict=True)], bar)

    def embed(self, prompts: Any, params: Params, tokenization: Mapping[str, Any] | None, bar: Any) -> list[EmbeddingRequestOutput]:
        """The vector of each prompt."""
        return [
            EmbeddingRequestOutput(one.request_id, EmbeddingOutput(one.outputs.data.tolist()), one.prompt_token_ids, one.num_cached_tokens)
            for one in self.encode(prompts, params, "embed", tokenization, bar)
        ]

    def classify(self, prompts: Any, params: Params, tokenization: Mapping[str, Any] | None, bar: Any) -> list[ClassificationRequestOutput]:
        """A number per label, for each prompt."""
        return [
            ClassificationRequestOutput(one.request_id, ClassificationOutput(one.outputs.data.tolist()), one.prompt_token_ids, one.num_cached_tokens)
            for one in self.encode(prompts, params, "classify", tokenization, bar)
        ]

    def score(self, first: str | Sequence[str], second: str | Sequence[str], params: PoolingParams | None, bar: Any) -> list[ScoringRequestOutput]:
        """Of each pair. One text against one or many, or as many against as many."""
        pairs = _pairs(first, second)
        params = params or PoolingParams()
        config = self._config()
        if not config.classifies:
            return self._similarities(pairs, params, bar)
        if len(config.labels) != 1:
            raise RequestError(f"score needs a model with one label, this one has {len(config.labels)}: use classify", field="score")
        params = replace(params, task="classify")
        jobs = [(*self._texts(a, b, params), params) for a, b in pairs]
        outputs = self._run(jobs, bar)
        return [ScoringRequestOutput(one.request_id, ScoringOutput(float(one.outputs.data[0])), one.prompt_token_ids) for one in outputs]

    def _similarities(self, pairs: list[tuple[str, str]], params: PoolingParams, bar: Any) -> list[ScoringRequestOutput]:
        task = "embed" if "embed" in self._config().tasks else "token_embed"
        params = replace(params, task=task)
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))  # each is computed once
        outputs = dict(zip(texts, self._run([(*self._texts(text, None, params), params) for text in texts], bar), strict=True))
        return [
            ScoringRequestOutput(
                f"{outputs[a].request_id}_{outputs[b].request_id}",
                ScoringOutput(similarity(outputs[a].outputs.data, outputs[b].outputs.data)),
                [*outputs[a].prompt_token_ids, *outputs[b].prompt_token_ids],
            )
            for a, b in pairs
        ]

    def _config(self) -> PoolingConfig:
        config = self._engine.info.pooling
        check_pooling(config, PoolingParams())
        assert config is not None
        return config

    def _parsed(self, prompt: Prompt, params: PoolingParams, tokenization: Mapping[str, Any] | None) -> tuple[list[int], int, PoolingParams]:
        return pooling_input(prompt, params, self._engine.tokenizer, self._engine.info.max_model_len, tokenization)

    def _texts(self, text: str, pair: str | None, params: PoolingParams) -> tuple[list[int], int]:
        return texts_input(text, pair, params, self._engine.tokenizer, self._engine.info.max_model_len)

    def _run(self, jobs: list[tuple[list[int], int, PoolingParams]], bar: Any) -> list[PoolingRequestOutput]:
        """All of one call, or none."""
        ids: list[str] = []
        try:
            for tokens, second, params in jobs:
                ids.append(self._engine.add_pooling_request(self._next_id(), tokens, params, second_text=second, lora=self._lora))
        except BaseException:
            self._engine.abort_request(ids)
            raise
        return self._collect(ids, bar)


def _pairs(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    ones, others = ([one] if isinstance(one, str) else list(one) for one in (first, second))
    if any(not isinstance(text, str) for text in (*ones, *others)):
        raise RequestError("score takes texts: give a string or a list of strings", field="data_1")
    if not ones or not others or (len(ones) != len(others) and len(ones) != 1):
        raise RequestError(f"{len(ones)} texts against {len(others)}: give one against one or many, or as many against as many", field="data_1")
    return list(zip(ones * len(others) if len(ones) == 1 else ones, others, strict=True))

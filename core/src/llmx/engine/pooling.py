"""Pooler: requests that want vectors or scores, checked before they run, and what becomes of the rows that the model gave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmx.config import EngineConfig
from llmx.engine.messages import Add, SeqOutput
from llmx.errors import PromptTooLong, RequestError
from llmx.kv.spec import BLOCK_TOKENS
from llmx.pooling_params import PoolingConfig, PoolingParams, check_pooling, gives_rows
from llmx.sched.emission import Emission

__all__ = ["Pooler", "with_whole_prompts"]

_LONGEST_STEP = 8192  # tokens that a step is made long enough for by itself, so that whole texts fit into one


def with_whole_prompts(config: EngineConfig, pooling: PoolingConfig | None, max_model_len: int, user_set: set[str]) -> EngineConfig:
    """The configuration with steps long enough for the longest text of a model whose texts are computed in one step.

    Where nothing of a text is kept after its step, the KV cache holds what one step needs, and no more.
    """
    if pooling is None or not pooling.whole_prompt:
        return config
    scheduler, cache = config.scheduler, config.cache
    if "scheduler.max_num_batched_tokens" not in user_set:
        scheduler = replace(scheduler, max_num_batched_tokens=max(scheduler.max_num_batched_tokens or 0, min(max_model_len, _LONGEST_STEP)))
    if pooling.bidirectional and scheduler.max_num_batched_tokens and not user_set & {"cache.kv_bytes", "cache.num_blocks"}:
        longest = max(scheduler.max_num_batched_tokens, max_model_len)
        cache = replace(cache, num_blocks=1 + -(-longest // BLOCK_TOKENS) + scheduler.max_num_seqs)  # each request's last block is begun
    return replace(config, scheduler=scheduler, cache=cache)


class Pooler:
    """One engine's pooling. config None: the model gives text. max_tokens: of one step."""

    def __init__(self, config: PoolingConfig | None, max_tokens: int) -> None:
        self.config = config
        self._max_tokens = max_tokens
        self._params: dict[str, PoolingParams] = {}

    def caching(self, config: EngineConfig) -> bool:
        """Whether prefixes are kept: where rows see what follows them, no page can serve another text."""
        return config.cache.prefix_caching and not (self.config is not None and self.config.bidirectional)

    def check(self, message: Add) -> None:
        """Raise RequestError for a request that this model cannot serve, or whose text does not fit into a step."""
        check_pooling(self.config, message.pooling)
        if self.config is None or message.pooling is None:
            return
        length = len(message.prompt)
        if self._whole(message.pooling) and length > self._max_tokens:
            why = f"the prompt has {length} tokens, and this model computes a prompt in one step of at most {self._max_tokens}"
            raise PromptTooLong(f"{why}: shorten it, or start with a larger --max-num-batched-tokens", field="prompt")
        if message.second_text >= 0 and not self.config.pairs:
            raise RequestError("the prompt is a pair of texts, but this model has no token types: give one text", field="prompt")

    def _kind(self, params: PoolingParams) -> Any:
        assert self.config is not None
        return "all" if gives_rows(self.config, params) else self.config.kind

    def _whole(self, params: PoolingParams) -> bool:
        assert self.config is not None
        return self.config.whole_prompt or self._kind(params) != "last"

    def fields(self, message: Add) -> dict[str, Any]:
        """Fields of its Request beside those that every request has."""
        if message.pooling is None:
            return {}
        self._params[message.id] = message.pooling
        return {"pooling": self._kind(message.pooling), "whole_prompt": self._whole(message.pooling), "second_text": message.second_text}

    def forget(self, request_id: str) -> None:
        """It has ended."""
        self._params.pop(request_id, None)

    def tell(self, emission: Emission, news: SeqOutput) -> None:
        """The answer into the news of a request whose rows have come."""
        if emission.pooled is not None:
            rows = self.result(news.id, emission.pooled)
            news.pooled, news.pooled_rows = rows.tobytes(), len(rows)

    def result(self, request_id: str, rows: np.ndarray) -> np.ndarray:
        """f32 [rows, W] of the model -> what was asked for: one row per text or per token, cut, of length 1, or as probabilities."""
        config, params = self.config, self._params[request_id]
        assert config is not None
        if self._kind(params) == "mean":
            rows = rows.mean(axis=0, dtype=np.float64, keepdims=True)
        rows = rows.astype(np.float64)
        if config.classifies:
            return _activated(rows, "none" if params.use_activation is False else config.activation).astype(np.float32)
        if params.dimensions is not None:
            rows = rows[:, : params.dimensions]
        active = config.normalize if params.use_activation is None else params.use_activation
        if active:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows.astype(np.float32)


def _activated(scores: np.ndarray, kind: str) -> np.ndarray:
    if kind == "sigmoid":
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(scores, -700, 700))))
    if kind == "softmax":
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))
    return scores

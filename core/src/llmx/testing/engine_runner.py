"""EngineRunner: the real scheduler over an executor, in this process; every invariant is checked after each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmx.config import EngineConfig
from llmx.engine.engine import Engine
from llmx.engine.messages import Add
from llmx.executor import KVPlan
from llmx.request import Request
from llmx.sampling_params import SamplingParams

__all__ = ["Answers", "EngineRunner"]

Answers = dict[tuple[str, int], tuple[list[int], str | None]]  # (request, index of n) -> tokens, finish reason


class EngineRunner:
    """An engine over an executor that has its pages (of `plan`). config: its cache and scheduler sections count."""

    def __init__(self, executor: Any, plan: KVPlan, config: EngineConfig, vocab_size: int, *, prefix: bool = False) -> None:
        config = replace(config, cache=replace(config.cache, prefix_caching=prefix), scheduler=replace(config.scheduler, interactive=False))
        self.executor = executor
        self.engine = Engine(config, executor, plan, eos_ids=(2,), vocab_size=vocab_size, numerics="test")

    @property
    def preemptions(self) -> int:
        """How often a request lost its pages to another."""
        return self.engine.stats().preemptions

    def run(self, prompts: Mapping[str, Sequence[int]], **params: Any) -> Answers:
        """The answers of requests that come together. params: of SamplingParams; by default greedy, 36 tokens, past EOS."""
        answers: Answers = {}
        for name, prompt in prompts.items():
            options = SamplingParams(**{"temperature": 0.0, "max_tokens": 36, "ignore_eos": True, **params})
            self.engine.add(Add(name, list(prompt), options))
            answers.update({(name, i): ([], None) for i in range(options.n)})
        for _ in range(2000):
            if not self.engine.has_work:
                break
            for news in self.engine.step():
                tokens, _reason = answers[news.id, news.index]
                answers[news.id, news.index] = (tokens + news.tokens, news.finish_reason)
            self.check()
        assert not self.engine.has_work, "the requests did not end within 2000 steps"
        assert self.engine.kv.blocks_held == 0, "blocks are held although no request is left"
        return answers

    def check(self) -> None:
        """Called after each step: blocks are held by whom they should be."""
        live: list[Request] = [request for group in self.engine._requests.values() for request in group.values()]
        self.engine.kv.check_integrity(live)

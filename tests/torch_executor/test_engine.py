"""The torch executor under the real scheduler: an answer does not depend on how it was scheduled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from llmx.executor import ModelBundle  # noqa: E402
from llmx.program.verify import verify  # noqa: E402
from llmx.testing import Answers, EngineRunner, bundle_of, kv_plan, tiny_llama  # noqa: E402
from tests.program.paper.oracle import make_config  # noqa: E402
from tests.program.test_meaning import DECODERS  # noqa: E402
from tests.torch_executor.test_ops import F32  # noqa: E402
from tests.torch_executor.torch_model import config_for, torch_executor  # noqa: E402

RNG = np.random.default_rng(4)
PROMPTS = [RNG.integers(3, 512, n).tolist() for n in (35, 3, 60, 17, 48)]
LENGTH = 128


def _decoder(case: str) -> ModelBundle:
    build, config_class, _, fields = DECODERS[case]
    model = build(make_config(config_class, **fields).to_dict(), lambda name: F32)  # type: ignore[call-arg]
    verify(model)
    return bundle_of(_without_transforms(model), max_model_len=LENGTH)


def _without_transforms(model: Any) -> Any:
    assert all(not ref.transforms for ref in model.weights().values())
    return model


MODELS = {
    "llama": lambda: replace(tiny_llama("f32"), max_model_len=LENGTH),
    "qwen2, window and full layers": lambda: _decoder("qwen2"),
    "falcon-h1, attention and recurrent": lambda: _decoder("falcon-h1"),
}


class Runner(EngineRunner):
    """An engine over a model on the torch executor, whose slots must have the scheduler's tokens after each step."""

    def __init__(self, bundle: ModelBundle, *, max_tokens: int = 256, seqs: int = 8, blocks: int = 200, prefix: bool = False) -> None:
        config = config_for(max_tokens, seqs)
        executor = torch_executor(bundle, config, blocks)
        super().__init__(executor, kv_plan(executor, blocks, LENGTH), config, bundle.vocab_size, prefix=prefix)

    def check(self) -> None:
        super().check()
        running = {r.slot: r.tokens for r in self.engine.scheduler.running}
        slots = self.executor._ready()[0].used
        assert {slot: slots[slot].history for slot in running if slot in slots} == {slot: tokens for slot, tokens in running.items() if slot in slots}


NAMED = {str(i): prompt for i, prompt in enumerate(PROMPTS)}
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "chunks of 16 rows": {"max_tokens": 16},
    "preempted": {"blocks": 12},
    "two slots": {"seqs": 2},
    "prefix cache": {"prefix": True},
}


@pytest.mark.parametrize("model", MODELS)
def test_answers_do_not_depend_on_the_schedule(model: str) -> None:
    bundle = MODELS[model]()
    drawn = {"temperature": 0.8, "top_k": 50, "repetition_penalty": 1.2, "seed": 11}
    for params in ({}, drawn) if model == "llama" else (drawn,):
        plain: Answers = {}
        alone = Runner(bundle)
        for name, prompt in NAMED.items():
            plain |= alone.run({name: prompt}, **params)
        assert len({tuple(tokens) for tokens, _ in plain.values()}) == len(NAMED) and all(end == "length" for _, end in plain.values())
        for way, options in WAYS.items():
            runner = Runner(bundle, **options)
            assert runner.run(NAMED, **params) == plain, way
            if way == "preempted":
                assert runner.preemptions > 0
            if way == "prefix cache":
                hits = runner.engine.kv.prefix_hits
                assert runner.run(NAMED, **params) == plain  # a second time, from the cache
                assert runner.engine.kv.prefix_hits > hits or "recurrent" in model  # no checkpoints of recurrent States yet


@pytest.mark.parametrize("model", MODELS)
def test_parallel_samples_are_requests_with_their_own_seeds(model: str) -> None:
    bundle, options = MODELS[model](), {"temperature": 1.0, "seed": 30}
    forked = Runner(bundle).run({"a": PROMPTS[0], "b": PROMPTS[2]}, n=3, **options)
    for name, prompt in (("a", PROMPTS[0]), ("b", PROMPTS[2])):
        for i in range(3):
            alone = Runner(bundle).run({name: prompt}, **{**options, "seed": 30 + i})
            assert forked[name, i] == alone[name, 0]
    assert len({tuple(tokens) for tokens, _ in forked.values()}) == 6

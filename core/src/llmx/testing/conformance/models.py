"""Whole tiny models: logits against the numpy reading, answers of the real scheduler that do not depend on the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.executor import ModelBundle
from llmx.testing.conformance.common import TOKENS, VOCAB, needs_late
from llmx.testing.conformance.op_programs import expected
from llmx.testing.conformance.outcome import Check, NotRun
from llmx.testing.driver import kv_plan, logits_of
from llmx.testing.engine_runner import Answers, EngineRunner
from llmx.testing.tiny_models import tiny_llama

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["model_checks", "schedule_checks"]

_GEMMA: Mapping[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "sliding_window": 20, "query_pre_attn_scalar": 24, "num_hidden_layers": 3,
    "num_attention_heads": 6, "rms_norm_eps": 1e-3,
}  # fmt: skip
MODELS: Mapping[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "num_attention_heads": 6},
    "gemma2": {"model_type": "gemma2", "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0, **_GEMMA},
}
_LENGTH = 128
_REQUIRED = "llama"
PROMPTS = {str(i): np.random.default_rng(i).integers(3, VOCAB, n).tolist() for i, n in enumerate((35, 3, 60, 17, 48))}


def model(name: str, scheme: str = "f32") -> ModelBundle:
    """One of MODELS; its matrices stored as `scheme`."""
    head = "f32" if scheme == "f32" else "q8_0"
    return replace(tiny_llama(scheme, head, max_position_embeddings=TOKENS, **MODELS[name]), max_model_len=_LENGTH)


def logits_equal_the_reference(name: str, scheme: str, subject: Subject) -> None:
    """Every row of two prompts, the second chunk beside another request."""
    if not subject.computes:
        raise NotRun("no model")
    bundle = model(name, scheme)
    driver = subject.driver(bundle, blocks=200)
    needs_late(driver)
    prompts = {0: PROMPTS["2"], 1: PROMPTS["1"]}
    driver.join(prompts)
    found: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for first, cut in ((0, 33), (33, 60)):
        feed = {slot: prompt[first:cut] for slot, prompt in prompts.items() if prompt[first:cut]}
        for slot, logits in logits_of(driver.executor, driver.seq, feed, dict.fromkeys(feed, first)).items():
            found[slot].append(logits)
        driver.seq += 1
    for slot, prompt in prompts.items():
        wanted = expected(bundle, prompt)
        assert wanted.std() > 0.1
        subject.near(np.concatenate(found[slot]), wanted, f"logits of {len(prompt)} rows")


def answers_do_not_depend_on_the_schedule(name: str, way: str, subject: Subject) -> None:
    """Requests together, in chunks, preempted, from the prefix cache: the answers that each gets alone."""
    drawn = {"temperature": 0.8, "top_k": 50, "repetition_penalty": 1.2, "seed": 11}
    plain: Answers = {}
    alone = runner(subject, name)
    for key, prompt in PROMPTS.items():
        plain |= alone.run({key: prompt}, **drawn)
    changes: dict[str, Any] = dict(WAYS[way])
    other = runner(subject, name, blocks=changes.pop("blocks", 200), prefix=changes.pop("prefix", False), **changes)
    found = other.run(PROMPTS, **drawn)
    wrong = [key for key in plain if found[key] != plain[key]]
    assert not wrong, f"{way}: requests {', '.join(key for key, _ in wrong)} give other tokens than alone"
    if way == "preempted":
        assert other.preemptions > 0, "twelve blocks were enough: nothing was preempted"
    if way == "prefix cache":
        hits = other.engine.kv.prefix_hits
        assert other.run(PROMPTS, **drawn) == plain, "the second time, from the prefix cache, answers differ"
        assert other.engine.kv.prefix_hits > hits, "the prefix cache was not hit"


WAYS: Mapping[str, dict[str, Any]] = {
    "together": {},
    "chunks of 16 rows": {"max_num_batched_tokens": 16},
    "preempted": {"blocks": 12},
    "two slots": {"max_num_seqs": 2},
    "prefix cache": {"prefix": True},
}


def runner(subject: Subject, name: str, *, blocks: int = 200, prefix: bool = False, **options: Any) -> EngineRunner:
    """The real scheduler over an executor of the platform."""
    bundle = model(name)
    config, _ = subject.configured(**{"dtype": "float32" if subject.exact else "auto", "max_num_seqs": 8, **options})
    executor = subject.executor(bundle, blocks=blocks, config=config)
    return EngineRunner(executor, kv_plan(executor, blocks, bundle.max_model_len), config, bundle.vocab_size, prefix=prefix)


def parallel_samples_have_their_own_seeds(subject: Subject) -> None:
    """n = 3 gives what three requests with the seeds of the children give."""
    options = {"temperature": 1.0, "seed": 30, "max_tokens": 20}
    forked = runner(subject, "llama").run({"a": PROMPTS["0"]}, n=3, **options)
    for i in range(3):
        alone = runner(subject, "llama").run({"a": PROMPTS["0"]}, **{**options, "seed": 30 + i})
        assert forked["a", i] == alone["a", 0], f"child {i} of n=3 differs from a request with its seed"


def no_hook_is_called_while_stepping(subject: Subject) -> None:
    """Zero pluggy calls in a hundred steps: what hooks return is resolved once."""
    one, calls = runner(subject, "llama"), []
    undo = subject.manager.add_hookcall_monitoring(lambda name, impls, kwargs: calls.append(name), lambda outcome, name, impls, kwargs: None)
    try:
        one.run({"a": PROMPTS["1"]}, max_tokens=100)
    finally:
        undo()
    assert one.engine.stats().steps >= 100 and not calls, f"hooks called while stepping: {sorted(set(calls))}"


def model_checks() -> list[Check]:
    """Logits per model and storage."""
    return [
        Check("models", f"logits of {name}, {scheme}", partial(logits_equal_the_reference, name, scheme), name == _REQUIRED and scheme == "f32")
        for name in MODELS
        for scheme in ("f32", "q4_1")
    ]


def schedule_checks() -> list[Check]:
    """Answers per model and schedule."""
    found = [
        Check("schedule", f"{name}: {way}", partial(answers_do_not_depend_on_the_schedule, name, way), name == _REQUIRED)
        for name in ("llama", "gemma2")
        for way in WAYS
    ]
    found.append(Check("schedule", "parallel samples", parallel_samples_have_their_own_seeds))
    return [*found, Check("schedule", "no hook call", no_hook_is_called_while_stepping)]

"""Warm-up through the engine itself: touches every path once and measures what a step costs, for the token budget."""

from __future__ import annotations

from time import monotonic

from llmx.engine.engine import Engine
from llmx.engine.messages import Add
from llmx.pooling_params import PoolingParams
from llmx.sampling_params import SamplingParams
from llmx.sched.drafting import Drafting

__all__ = ["measure"]

_PROMPT = 32  # tokens: enough that the cost per token dominates; a start waits for them
_NEW = 3
_ROWS = (1, 2, 4, 8, 16)  # decode rows whose cost drafting asks for
_ROW_STEPS = 6  # steps of each, of which the shortest counts
_ROWS_S = 1.0  # seconds after which no further one is measured


def measure(engine: Engine) -> float:
    """Run one small request; then the budget knows a prefill token's and a decode step's cost. Leaves no trace in the counters.

    Returns the seconds that the largest step would take at that cost; 0 where the model is too small to measure.
    """
    length = min(_PROMPT, engine.max_model_len - _NEW, engine.scheduler.budget.max_tokens)
    if length < 2:
        return 0.0
    pooling = None if engine.pooler.config is None else PoolingParams()
    params = SamplingParams(temperature=0.0, max_tokens=0 if pooling else _NEW, ignore_eos=True, seed=0)
    engine.add(Add("warm-up", [1 + i % (engine.vocab_size - 1) for i in range(length)], params, pooling=pooling))
    while engine.has_work:
        engine.step()
    if engine.scheduler.drafting is not None:
        _measure_rows(engine, engine.scheduler.drafting)
    engine.accounting.reset()
    budget = engine.scheduler.budget
    return (budget.prefill_token_us or 0.0) * budget.max_tokens / 1e6


def _measure_rows(engine: Engine, drafting: Drafting) -> None:
    """What a step with more decode rows costs, so that drafts are made where their rows are cheap. Stops early where steps are long."""
    drafting.enabled, began, stats = False, monotonic(), engine.accounting.stats
    params = SamplingParams(temperature=0.0, max_tokens=1 + _ROW_STEPS, ignore_eos=True, seed=0)
    for rows in _ROWS:
        if rows > min(engine.executor.limits.max_requests, engine.scheduler.budget.max_tokens // 2) or monotonic() - began > _ROWS_S:
            break
        for index in range(rows):
            engine.add(Add(f"warm-up-{index}", [(2 + index) % engine.vocab_size, 3 % engine.vocab_size], params))
        times = []
        while engine.has_work:
            before = stats.step_tokens, stats.forward_us + stats.sample_us
            engine.step()
            if stats.step_tokens - before[0] == rows:
                times.append(stats.forward_us + stats.sample_us - before[1])
        if times and min(times) > 0:
            drafting.cost.set(rows, float(min(times)))
    drafting.enabled = True
    if drafting.depth is not None:
        _measure_runs(engine, drafting)


def _measure_runs(engine: Engine, drafting: Drafting) -> None:
    """What a run of the drafter costs, for one request and for several."""
    drafting.fixed, params = True, SamplingParams(temperature=0.0, max_tokens=1 + 2 * _ROW_STEPS, ignore_eos=True, seed=0)
    for rows in (1, min(8, engine.executor.limits.max_requests)):
        for index in range(rows):
            engine.add(Add(f"warm-up-{index}", [(2 + index) % engine.vocab_size, 3 % engine.vocab_size], params))
        while engine.has_work:
            engine.step()
    drafting.fixed = False

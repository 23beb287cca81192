"""Warm-up through the engine itself: touches every path once and measures what a step costs, for the token budget."""

from __future__ import annotations

from llmx.engine.engine import Engine
from llmx.engine.messages import Add
from llmx.pooling_params import PoolingParams
from llmx.sampling_params import SamplingParams

__all__ = ["measure"]

_PROMPT = 128  # tokens: enough that the cost per token dominates
_NEW = 4


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
    engine.accounting.reset()
    budget = engine.scheduler.budget
    return (budget.prefill_token_us or 0.0) * budget.max_tokens / 1e6

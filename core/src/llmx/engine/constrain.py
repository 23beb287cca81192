"""From a request's structured_outputs to one Constraint per answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmx.engine.processors import Processors
from llmx.executor.base import Limits
from llmx.sampling_params import SamplingParams
from llmx.structured.constraint import Constraint
from llmx.structured.gates import check_form, put_gates
from llmx.structured.manager import Grammars, ReadyGrammar

__all__ = ["constrain"]


def constrain(
    params: SamplingParams, grammars: Grammars | None, ready: ReadyGrammar | None, eos_ids: tuple[int, ...], processors: Processors, limits: Limits
) -> tuple[SamplingParams, list[Constraint | None]]:
    """(params as the engine runs them, a Constraint for each of n answers). ready: the grammar; None: it is compiled here, if there is one.

    Under a grammar EOS ends the answer even with ignore_eos, and min_tokens holds only while the grammar allows something else.
    limits: the executor's. Raises GrammarError, RequestError.
    """
    wanted = params.structured_outputs
    check_form(params, masks=grammars is not None and limits.has("late_mask"))
    if wanted is None or grammars is None:
        return params, processors.put(params, [None] * params.n, limits)
    ready = ready or grammars.get(wanted)
    stops = np.array(sorted({*params.stop_token_ids, *eos_ids}), np.int32)
    least = params.min_tokens if wanted.form else 0
    constraints = [Constraint(ready.backend, ready.compiled.matcher(), least, stops) for _ in range(params.n)]
    put_gates(constraints, params, grammars, ready, eos_ids)
    return (replace(params, min_tokens=0, ignore_eos=False) if wanted.form else params), processors.put(params, constraints, limits)

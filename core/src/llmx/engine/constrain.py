"""From a request's structured_outputs to one Constraint per answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmx.errors import GrammarError, RequestError
from llmx.sampling_params import SamplingParams
from llmx.structured.constraint import Constraint
from llmx.structured.gates import put_gates
from llmx.structured.manager import Grammars, ReadyGrammar

__all__ = ["constrain"]


def constrain(
    params: SamplingParams, grammars: Grammars | None, ready: ReadyGrammar | None, eos_ids: tuple[int, ...], *, masks: bool
) -> tuple[SamplingParams, list[Constraint | None]]:
    """(params as the engine runs them, a Constraint for each of n answers). ready: the grammar; None: it is compiled here, if there is one.

    Under a grammar EOS ends the answer even with ignore_eos, and min_tokens holds only while the grammar allows something else.
    masks: the executor takes token masks. Raises GrammarError.
    """
    wanted = params.structured_outputs
    if params.thinking_token_budget is not None:
        raise RequestError("thinking_token_budget: it is not known how this model marks its reasoning", field="thinking_token_budget")
    if wanted is None:
        return params, [None] * params.n
    if grammars is None or not masks:
        why = "this platform cannot mask tokens, so no form can be enforced: leave it out, or use another platform"
        raise GrammarError(f"{wanted.field_name}: {why}", field=wanted.field_name)
    ready = ready or grammars.get(wanted)
    stops = np.array(sorted({*params.stop_token_ids, *eos_ids}), np.int32)
    least = params.min_tokens if wanted.form else 0
    constraints = [Constraint(ready.backend, ready.compiled.matcher(), least, stops) for _ in range(params.n)]
    put_gates(constraints, params, grammars, ready, eos_ids)
    return (replace(params, min_tokens=0, ignore_eos=False) if wanted.form else params), [*constraints]

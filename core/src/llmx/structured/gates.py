"""From the reasoning that a request's form begins behind to the gate of each of its answers."""

from __future__ import annotations

from collections.abc import Sequence

from llmx.errors import GrammarError, RequestError
from llmx.sampling_params import SamplingParams
from llmx.structured.constraint import Constraint
from llmx.structured.manager import Grammars, ReadyGrammar
from llmx.structured.reasoning import MarkerTokens, ReasoningGate
from llmx.structured_params import ReasoningSpan

__all__ = ["check_form", "put_gates"]


def check_form(params: SamplingParams, *, masks: bool) -> None:
    """Raise RequestError for a form or a thinking budget that cannot be held. masks: tokens can be masked."""
    if params.thinking_token_budget is not None:
        raise RequestError("thinking_token_budget: it is not known how this model marks its reasoning", field="thinking_token_budget")
    wanted = params.structured_outputs
    if wanted is not None and not masks:
        why = "this platform cannot mask tokens, so no form can be enforced: leave it out, or use another platform"
        raise GrammarError(f"{wanted.field_name}: {why}", field=wanted.field_name)


def put_gates(constraints: Sequence[Constraint], params: SamplingParams, grammars: Grammars, ready: ReadyGrammar, eos_ids: tuple[int, ...]) -> None:
    """Give each of a request's constraints its gate. Raises RequestError where the end marker that its budget needs cannot be drawn."""
    wanted = params.structured_outputs
    if wanted is None or wanted.after is None:
        return
    markers = grammars.markers(wanted.after)
    if wanted.after.budget is not None:
        _check_marker(markers, wanted.after, params)
    for one in constraints:
        one.compiled, one.free = ready.compiled, not wanted.form
        one.gate = ReasoningGate(markers, wanted.after, eos_ids if wanted.form else None)


def _check_marker(markers: MarkerTokens, span: ReasoningSpan, params: SamplingParams) -> None:
    field, ids = "thinking_token_budget", markers.spelled()
    if not ids:
        raise RequestError(f"{field}: this vocabulary has no tokens for the end marker {span.end!r}: leave it out", field=field)
    hidden = set(ids) - set(params.allowed_token_ids or ids)
    hidden |= {words[0] for words in params.bad_word_ids if len(words) == 1 and words[0] in ids}
    if hidden:
        which = ", ".join(map(str, sorted(hidden)))
        why = f"the end marker {span.end!r} has the tokens {which}, which allowed_token_ids or bad_words rule out: let them be drawn"
        raise RequestError(f"{field}: {why}", field=field)

"""use_beam_search: what goes with it, and what does not because nothing is drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from llmx.errors import RequestError
from llmx.sampling_params import SamplingParams
from llmx_server.body import shorten

if TYPE_CHECKING:
    from llmx_server.protocol.sampling import SamplingFields

__all__ = ["MAX_LENGTH_PENALTY", "beams_of"]

MAX_LENGTH_PENALTY = 10.0  # beyond it lengths of a whole context are no numbers any more

# field -> values that ask for nothing
_NOT_WITH: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "temperature": (0,),
    "top_p": (1,),
    "top_k": (-1, 0, 1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "min_tokens": (0,),
    "logits_processors": ([],),
    "thinking_token_budget": (-1,),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
}


def beams_of(body: SamplingFields, params: SamplingParams) -> float | None:
    """The length penalty of the beam search that `body` asks for, None when it asks for none. params: its own. Raises RequestError."""
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    if not math.isfinite(penalty) or abs(penalty) > MAX_LENGTH_PENALTY:
        raise RequestError(f"length_penalty is {penalty}: it must be in -{MAX_LENGTH_PENALTY:g}..{MAX_LENGTH_PENALTY:g}", field="length_penalty")
    if not body.use_beam_search:
        if penalty != 1.0:
            raise RequestError(f"length_penalty is {penalty}, which is for beam search: set use_beam_search, or leave it out", field="length_penalty")
        return None
    for name, neutral in _NOT_WITH.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise RequestError(f"{name} is {shorten(value)}, which does not go with use_beam_search: leave it out", field=name)
    for name, asked in (("structured_outputs", params.structured_outputs), ("logprobs", params.prompt_logprobs), ("max_tokens", params.max_tokens == 0)):
        if asked not in (None, False):
            why = {"logprobs": " with echo", "max_tokens": " of 0"}.get(name, ", response_format or a forced tool call")
            raise RequestError(f"{name}{why} does not go with use_beam_search: leave it out", field=name)
    return penalty

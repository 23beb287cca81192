"""One drawn token written into a StepOutput, with the logprobs that its sample wants: for executors that sample in numpy."""

from __future__ import annotations

import numpy as np

from llmx.batch import StepOutput, Want
from llmx.sample.reference import logprobs

__all__ = ["write_drawn"]


def write_drawn(out: StepOutput, index: int, at: int, token: int, raw: np.ndarray, want: Want | None) -> None:
    """Token number `at` of sample `index`. raw: its float32 logits [V], from which the logprobs are."""
    if want is not None and out.lp is not None and out.lp_ids is not None and out.rank is not None:
        entry = logprobs(raw, token, want.top_logprobs, want.ids)
        out.lp_ids[index, at, : len(entry.ids)], out.lp[index, at, : len(entry.lp)] = entry.ids, entry.lp
        out.rank[index, at] = entry.rank
    out.tokens[index, at] = token
    out.count[index] = at + 1

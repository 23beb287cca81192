"""Emission: what one update of the scheduler gave one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from llmx.batch import PromptLogprobs
    from llmx.request import Request

__all__ = ["Emission"]


@dataclass(slots=True)
class Emission:
    """What one update gave one request: new tokens with their logprob rows, or logprobs of prompt rows, or its end."""

    request: Request
    tokens: list[int]
    logprobs: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # ids [n, W], lp [n, W], rank [n]
    prompt_logprobs: PromptLogprobs | None = None
    pooled: np.ndarray | None = None  # f32 [rows, W]

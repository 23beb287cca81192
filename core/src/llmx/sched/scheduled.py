"""Scheduled: a submitted Step and whose rows it holds. The executor sees the Step alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmx.batch import Step
from llmx.request import Request

__all__ = ["Scheduled"]


@dataclass(slots=True)
class Scheduled:
    """A submitted Step and whose rows, samples and score spans it holds, in the Step's order."""

    step: Step
    rows: list[tuple[Request, int]]  # the request, and its computed tokens after this step, drafts not counted
    samples: list[Request]
    scores: list[Request]
    num_decoding: int
    num_prefill: int
    pooled: list[tuple[Request, slice]] = field(default_factory=list)  # the request, and its head rows

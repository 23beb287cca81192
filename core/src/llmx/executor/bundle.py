"""ModelBundle: all an executor gets of a model. Built by llmx.models.load, handed to the platform's `llmx_executor` hook."""

from __future__ import annotations

from llmx.program.ops import Model
from llmx.record import record
from llmx.weights.host_tensor import WeightSource

__all__ = ["ModelBundle"]


@record
class ModelBundle:
    """A model's Programs and where its weights are.

    digest: of names, shapes, types and the first and last 4 KiB of each tensor; part of the numerics hash.
    draft_mask: of a drafter that guesses several tokens in one run, the token that stands for those before it; -1: none.
    """

    name: str
    architecture: str
    model: Model
    weights: WeightSource
    vocab_size: int
    max_model_len: int
    digest: str = ""
    draft_mask: int = -1

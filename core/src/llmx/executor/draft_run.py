"""DraftRun: the drafts of one executor: its loop at the end of a step, by what the drafter's Programs are."""

from __future__ import annotations

from llmx.batch import Step, StepOutput
from llmx.executor.draft_heads import HeadLoop
from llmx.executor.draft_loop import DraftLoop
from llmx.executor.draft_shape import DraftShape, Forward
from llmx.kv.spec import KVPlan

__all__ = ["DraftRun"]


class DraftRun:
    """`change` sees every step, before its pages change; `finish` closes it. forward: runs rows of the Programs."""

    def __init__(self, shape: DraftShape, plan: KVPlan, max_tokens: int, forward: Forward) -> None:
        self._loop = DraftLoop(plan, shape, max_tokens) if shape.states else HeadLoop(len(shape.programs), shape.guesses)
        self._forward = forward

    def change(self, step: Step) -> None:
        """A step begins."""
        self._loop.change(step)

    def finish(self, step: Step, out: StepOutput) -> None:
        """A step was sampled: guess what follows, where it asks for that."""
        self._loop.draft(step, out, self._forward)

"""What came of a check, and how a check says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from llmx.record import record

__all__ = ["ALLOWED_SKIPS", "Check", "NotRun", "Outcome", "Refused", "Result"]

Outcome = Literal["passed", "failed", "refused", "not run"]

# The only reasons for which a check may be left out. Any other skip is a failure.
ALLOWED_SKIPS = {
    "no model": "the executor has no model: its tokens come from a hash of the history",
    "part of core": "the platform is a module of core",
    "no late masks": "the executor does not have the features late_mask and host_logits",
    "no graphs": "the device does not have the capability graph.capture",
    "no sleep": "the device does not have the capability memory.sleep",
    "no collectives": "the platform has no group of ranks (llmx_process_group)",
    "no adapters": "the executor does not have the feature lora",
    "no adapted embeddings": "the executor does not have the feature lora.embeddings",
    "one step": "the executor takes one step at a time",
}


class Refused(Exception):
    """The platform refuses what a check wants, with its reason. A failure where the check is required."""


class NotRun(Exception):
    """A check that does not apply; the argument is a key of ALLOWED_SKIPS."""


@record
class Check:
    """One check of an area. run(subject) raises AssertionError with what is wrong. required: a refusal fails it."""

    area: str
    name: str
    run: Callable[[Any], None]
    required: bool = True

    def __str__(self) -> str:
        return f"{self.area}: {self.name}"


@record
class Result:
    """What came of one check. why: empty when it passed."""

    area: str
    name: str
    outcome: Outcome
    why: str = ""
    seconds: float = 0.0

    def require(self) -> None:
        """Raise AssertionError when it failed (for tests that run one check each)."""
        assert self.outcome != "failed", f"{self.area}: {self.name}: {self.why}"

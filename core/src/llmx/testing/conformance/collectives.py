"""Collectives: 2 and 4 processes that meet by the platform's hooks, as ranks of an engine do (rank_cases has what they do there)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from llmx.engine.meeting import Meeting
from llmx.errors import EngineDead
from llmx.testing.conformance.outcome import Check, NotRun
from llmx.testing.conformance.rank_cases import CASES, LOST

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["SILENCE_S", "checks"]

SILENCE_S = 60.0  # of all ranks: then some wait for what never comes
_SIZES = (2, 4)
_AREA = "collectives"


def checks() -> Iterator[Check]:
    """Every case, with as many ranks."""
    for size in _SIZES:
        for case in CASES:
            yield Check(_AREA, f"{case}, {size} ranks", partial(_check, case, size))


def _check(case: str, size: int, subject: Subject) -> None:
    if not subject.has_ranks:
        raise NotRun("no collectives")
    said, end = _met(subject, size)
    living = range(size - 1 if case == LOST else size)
    answers = {rank: said[case, rank] for rank in living if (case, rank) in said}
    for rank, answer in answers.items():
        assert not answer["wrong"], f"rank {rank} of {size}: {answer['wrong']}"
    silent = [str(rank) for rank in living if rank not in answers]
    assert not silent, f"rank {', '.join(silent)} of {size} did not come back from it: {end or 'it ended'}"
    assert len({answer["digest"] for answer in answers.values()}) == 1, "ranks have results with other bits than one another"


def _met(subject: Subject, size: int) -> tuple[dict[tuple[str, int], dict[str, Any]], str]:
    """({(case, rank): its answer}, how it ended badly) of one meeting, held once for all cases of a subject."""
    if (found := subject.kept.get((_AREA, size))) is None:
        said, end = {}, ""
        with Meeting(subject.options, size, "llmx.testing.conformance.rank_cases:run") as meeting:
            try:
                for answer in meeting.said(SILENCE_S):
                    said[answer["case"], answer["rank"]] = answer
                end = meeting.noise()
            except EngineDead as error:
                end = str(error)
        found = subject.kept[_AREA, size] = (said, end)
    return found

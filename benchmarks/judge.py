"""The arithmetic of the comparison: ratios round by round, their median, and whether a floor is met. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.rows import Floor, Job, Row
from benchmarks.work import Limits, Work

__all__ = ["SHARE", "RowResult", "Verdict", "failures", "judge", "ratios"]

SHARE = {"read": 0.70, "compute": 0.50}  # of a limit, which counts as a floor met

Rates = Mapping[Job, Mapping[str, Sequence[float | None]]]  # job -> workload -> one value per round, None where a run failed or cannot be


@dataclass
class Verdict:
    """One row against one peer. ratios: llmx / peer, round by round, None where one of them has no value."""

    peer: str
    floor: float | None
    aim: float | None
    ratios: list[float | None]
    median: float | None
    met: bool | None  # None: there is no floor, or nothing to judge
    by: str = ""  # "ratio", or "limit" when only the share of the machine's limit meets the floor


@dataclass
class RowResult:
    """One row: llmx's values, the share of the machine's limit that their median is, and the verdict for each peer."""

    name: str
    workload: str
    less: bool
    asserted: bool
    values: list[float | None]
    median: float | None
    limit: str
    share: float | None
    verdicts: list[Verdict] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain objects."""
        return asdict(self)


def ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float | None]:
    """Ours / theirs in each round; None where one is missing or theirs is 0."""
    return [None if a is None or not b else a / b for a, b in zip(ours, theirs, strict=True)]


def judge(rows: Sequence[Row], rates: Rates, works: Mapping[str, Work], limits: Limits | None) -> list[RowResult]:
    """Each row with its verdicts. works: by model; rows of models without one have no share of the limit."""
    results = []
    for row in rows:
        values = list(rates.get(row.llmx, {}).get(row.workload, ()))
        result = RowResult(row.name, row.workload, row.less, row.asserted, values, _median(values), row.limit, None)
        result.share = _share(row, result.median, rates, works, limits)
        result.verdicts = [_verdict(row, floor, values, rates, result.share) for floor in row.floors]
        results.append(result)
    return results


def _verdict(row: Row, floor: Floor, values: Sequence[float | None], rates: Rates, share: float | None) -> Verdict:
    theirs = list(rates.get(floor.peer, {}).get(row.workload, ()))
    each = ratios(values, theirs) if len(theirs) == len(values) else []
    middle = _median(each)
    verdict = Verdict(str(floor.peer), floor.floor, floor.aim, each, middle, None)
    if floor.floor is None or middle is None:
        return verdict
    verdict.met = middle <= floor.floor if row.less else middle >= floor.floor
    verdict.by = "ratio" if verdict.met else ""
    if not verdict.met and share is not None and share >= SHARE[row.limit]:
        verdict.met, verdict.by = True, "limit"
    return verdict


def _share(row: Row, rate: float | None, rates: Rates, works: Mapping[str, Work], limits: Limits | None) -> float | None:
    """llmx's part of the limit: the largest rate that the probe or any engine showed in this run."""
    work = works.get(row.llmx.model)
    if rate is None or work is None or limits is None or not row.limit:
        return None
    seen = 0.0
    for job, values in rates.items():
        best = max((v for v in values.get(row.workload, ()) if v is not None), default=None)
        if best is not None and job.model in works:
            seen = max(seen, works[job.model].share(row.workload, best, row.limit, limits))
    return work.share(row.workload, rate, row.limit, limits) / max(1.0, seen)


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def failures(results: Sequence[RowResult], peers: Sequence[str]) -> list[str]:
    """Why an assertion over these results fails, one line each; [] when every asserted floor of these peers is met.

    An asserted row without a value for llmx or for a peer that was asked for is a failure: what was not measured was not reached.
    """
    lines = []
    for result in results:
        if not result.asserted:
            continue
        if result.median is None:
            lines.append(f"{result.name}: llmx gave no value")
        for verdict in result.verdicts:
            if verdict.floor is None or verdict.peer.split()[0] not in peers:
                continue
            if verdict.met is None:
                lines.append(f"{result.name}: no ratio against {verdict.peer}")
            elif not verdict.met:
                share = "" if result.share is None else f", and {result.share:.0%} of the machine's limit"
                lines.append(f"{result.name}: {verdict.median:.2f} of {verdict.peer}, the floor is {verdict.floor:g}{share}")
    return lines

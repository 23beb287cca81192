"""Suite: every check, run on one platform; the report as a table's rows and as JSON."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any

from llmx.errors import ConfigError, LlmxError
from llmx.testing.conformance.outcome import ALLOWED_SKIPS, Check, NotRun, Outcome, Refused, Result

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["AREAS", "OPTIONAL", "WAITING", "Report", "Suite", "run"]

_ROOT = "llmx.testing.conformance"
# area -> where its checks are (a tuple of functions, or a function that gives Checks), and how many must pass on a platform with a model
AREAS: dict[str, tuple[str, int]] = {
    "package": ("package:CHECKS", 3),
    "hooks": ("hook_results:HOOK_CHECKS", 9),
    "protocol": ("protocol:CHECKS", 18),
    "kv pages": ("kv_pages:CHECKS", 7),
    "sampling": ("sampling:CHECKS", 14),
    "ops": ("ops:checks", 20),
    "models": ("models:model_checks", 1),
    "schedule": ("models:schedule_checks", 7),
    "errors": ("hook_results:ERROR_CHECKS", 6),
    "graph capture": ("graphs:CHECKS", 5),
    "memory and sleep": ("sleep:CHECKS", 4),
    "collectives": ("collectives:checks", 14),
    "adapters": ("adapters:CHECKS", 5),
}
# what a platform may have one day and this suite does not check: the hook that it waits for
WAITING = {
    "KV transfer": "llmx_kv_mover and llmx_kv_connectors",
    "mixtures of experts and recurrent states": "model families that serve them",
}
# areas that wait for something that a platform may lack: without it none of their checks has a subject
OPTIONAL: dict[str, Callable[[Subject], bool]] = {
    "graph capture": lambda subject: subject.caps.has("graph.capture"),
    "memory and sleep": lambda subject: subject.caps.has("memory.sleep"),
    "collectives": lambda subject: subject.has_ranks,
    "adapters": lambda subject: subject.has_feature("lora"),
}
_OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "refused", "not run")


class Report:
    """The results of a run. facts: who the platform is."""

    def __init__(self, facts: dict[str, Any], results: Sequence[Result]) -> None:
        self.facts, self.results = facts, tuple(results)

    @property
    def ok(self) -> bool:
        """True when nothing failed."""
        return all(result.outcome != "failed" for result in self.results)

    def counts(self, area: str | None = None) -> dict[Outcome, int]:
        """How many of an area, or of all, came out how."""
        chosen = [result for result in self.results if area in (None, result.area)]
        return {outcome: sum(result.outcome == outcome for result in chosen) for outcome in _OUTCOMES}

    def of(self, outcome: Outcome) -> list[Result]:
        """The results with this outcome."""
        return [result for result in self.results if result.outcome == outcome]

    def rows(self) -> list[tuple[str, ...]]:
        """(area, passed, failed, refused, not run) as text, in the order of AREAS."""
        areas = [area for area in AREAS if any(result.area == area for result in self.results)]
        return [(area, *(str(self.counts(area)[outcome]) for outcome in _OUTCOMES)) for area in areas]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able: facts, counts, every result, and a badge in the form of shields.io's endpoint."""
        counts = self.counts()
        message = f"{counts['passed']} passed" if self.ok else f"{counts['failed']} failed"
        return {
            **self.facts,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "ok": self.ok,
            "counts": counts,
            "results": [
                {"area": r.area, "name": r.name, "outcome": r.outcome, "why": r.why, "seconds": round(r.seconds, 3)} for r in self.results
            ],
            "waiting": WAITING,
            "badge": {"schemaVersion": 1, "label": f"llmx conformance: {self.facts['platform']}", "message": message, "color": "green" if self.ok else "red"},
        }


class Suite:
    """The checks for one installed platform. areas: these alone, by name. Raises ConfigError for an area that is none."""

    def __init__(self, platform: str, *, emulate: bool = False, areas: Iterable[str] | None = None) -> None:
        self.areas = tuple(areas or AREAS)
        unknown = [area for area in self.areas if area not in AREAS]
        if unknown:
            raise ConfigError(f"there is no area {unknown[0]!r}: the areas are {', '.join(AREAS)}", field="area")
        from llmx.testing.conformance.subject import Subject

        self.subject = Subject(platform, emulate=emulate)
        self.checks = [check for area in self.areas for check in _checks(area)]

    def run_one(self, check: Check) -> Result:
        """What came of one check; it never raises."""
        began = perf_counter()
        outcome, why = _outcome(check, self.subject)
        try:
            self.subject.close()
        except Exception as error:  # noqa: BLE001 - foreign code
            outcome, why = "failed", why or f"close raised {type(error).__name__}: {error}"
        return Result(check.area, check.name, outcome, why, perf_counter() - began)

    def run(self, progress: Callable[[Result], None] = lambda result: None) -> Report:
        """Every check, one after the other, then whether each area had enough of them."""
        results = []
        for check in self.checks:
            results.append(self.run_one(check))
            progress(results[-1])
        if self.subject.computes:
            results += self._too_few(results)
        return Report({**self.subject.facts()}, results)

    def _too_few(self, results: Sequence[Result]) -> list[Result]:
        passed = {area: sum(r.area == area and r.outcome == "passed" for r in results) for area in self.areas}
        due = [area for area in self.areas if area not in OPTIONAL or OPTIONAL[area](self.subject)]
        missing = [(area, passed[area], AREAS[area][1]) for area in due if passed[area] < AREAS[area][1]]
        return [Result(area, "enough checks", "failed", f"{found} checks passed, at least {least} must") for area, found, least in missing]


def _checks(area: str) -> list[Check]:
    module, _, name = AREAS[area][0].partition(":")
    found = getattr(import_module(f"{_ROOT}.{module}"), name)
    return list(found()) if callable(found) else [Check(area, check.__name__.replace("_", " "), check) for check in found]


def _outcome(check: Check, subject: Subject) -> tuple[Outcome, str]:
    try:
        check.run(subject)
    except AssertionError as error:
        return "failed", str(error) or traceback.format_exc(limit=-1).strip()
    except NotRun as skipped:
        key = str(skipped)
        return ("not run", ALLOWED_SKIPS[key]) if key in ALLOWED_SKIPS else ("failed", f"skipped for a reason that is not allowed: {key}")
    except Refused as refused:
        reason = str(refused)
        return ("failed", f"a platform must take this: {reason}") if check.required or not reason else ("refused", reason)
    except LlmxError as error:
        return "failed", f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - foreign code; its traceback is the reason
        return "failed", traceback.format_exc(limit=-3).strip()
    return "passed", ""


def run(platform: str, *, emulate: bool = False, areas: Iterable[str] | None = None) -> Report:
    """Runs the suite on an installed platform."""
    return Suite(platform, emulate=emulate, areas=areas).run()

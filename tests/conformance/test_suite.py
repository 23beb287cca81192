"""The conformance suite on the platforms that run here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmx.errors import ConfigError, PlatformError
from llmx.testing.conformance import AREAS, Check, Suite
from llmx.testing.conformance.outcome import NotRun, Refused
from llmx.testing.conformance.package import PUBLIC_MODULES
from llmx.testing.conformance.suite import OPTIONAL
from tests.server.processes import llmx

# the rest of the schedule is in tests/torch_executor/test_engine.py, with more models, and in tests/sched
FEW = {
    ("torch", "schedule"): ("llama: preempted", "no hook call"),
    ("null", "schedule"): ("llama: preempted", "no hook call"),
    ("torch", "collectives"): ("sums in the order of the ranks, 2 ranks", "a lost rank is an error, 2 ranks"),  # processes that read torch; 4 in the reports
}


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("platform", ["cpu", "torch", "null"])
def test_area(platform: str, area: str) -> None:
    if platform == "torch":
        pytest.importorskip("torch").set_num_threads(1)
    suite = Suite(platform, areas=[area])
    if (platform, area) in FEW:
        results = [suite.run_one(check) for check in suite.checks if check.name in FEW[platform, area]]
        assert [result.outcome for result in results] == ["passed", "passed"], results
        return
    report = suite.run()
    assert report.ok, "\n".join(f"{result.name}: {result.why}" for result in report.of("failed"))
    assert report.counts()["passed"] >= AREAS[area][1] or platform == "null" or area in OPTIONAL


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = llmx("conformance", "--platform", "null", "--area", "errors", "--area", "kv pages", "--output", str(file))
    assert done.returncode == 0, done.stderr
    assert "kv pages  7       0       0        0" in done.stdout and "the executor has no model" in done.stdout
    report = json.loads(file.read_text())
    assert report["ok"] and report["platform"] == "null" and report["counts"]["failed"] == 0 and report["badge"]["color"] == "green"
    assert {result["area"] for result in report["results"]} == {"errors", "kv pages"} and report["date"].startswith("20")


def test_public_modules_are_those_of_the_import_rules() -> None:
    from arch_imports import PUBLIC

    assert set(PUBLIC_MODULES) == set(PUBLIC)


def test_mistakes_are_named() -> None:
    with pytest.raises(PlatformError, match="'zpu' is not installed.*cpu.*null.*torch"):
        Suite("zpu")
    with pytest.raises(ConfigError, match="no area 'speed'.*package, hooks"):
        Suite("null", areas=["speed"])
    with pytest.raises(PlatformError, match="--emulate.*executor of its own"):
        Suite("null", emulate=True)
    done = llmx("conformance", "--platform", "zpu")
    assert done.returncode == 2 and "zpu" in done.stderr


def test_a_skip_or_a_refusal_that_is_not_allowed_fails() -> None:
    suite = Suite("null", areas=["errors"])

    def skips(subject: object) -> None:
        raise NotRun("no time")

    def refuses(subject: object) -> None:
        raise Refused("too hard")

    assert suite.run_one(Check("errors", "skips", skips)).why == "skipped for a reason that is not allowed: no time"
    assert suite.run_one(Check("errors", "refuses", refuses)).outcome == "failed"
    optional = suite.run_one(Check("errors", "refuses", refuses, required=False))
    assert (optional.outcome, optional.why) == ("refused", "too hard")
    with pytest.raises(AssertionError, match="too hard"):
        suite.run_one(Check("errors", "refuses", refuses)).require()


def test_an_area_with_too_few_checks_fails() -> None:
    suite = Suite("cpu", areas=["errors"])
    suite.checks = suite.checks[:2]
    report = suite.run()
    assert not report.ok and report.of("failed")[0].why == "2 checks passed, at least 6 must"

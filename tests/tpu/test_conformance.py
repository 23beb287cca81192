"""The conformance suite on JAX's CPU backend: a part of it here, all of it among the slow tests. docs/conformance has the report."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from llmx.testing.conformance import AREAS, Suite  # noqa: E402

PART = {
    "protocol": ("verified drafts give the tokens of single steps", "forks draw with their own seed"),
    "kv pages": ("copied blocks",),
    "sampling": ("top k, top p and min p together as specified", "penalties of a drawn row as specified"),
    "errors": ("a slot that nobody holds", "a device that is none"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch, jax_cache: str) -> None:
    monkeypatch.setenv("LLMX_TPU_BACKEND", "cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", jax_cache)


@pytest.mark.parametrize("area", ["package", "hooks"])
def test_package_and_hooks(area: str) -> None:
    report = Suite("tpu", areas=[area]).run()
    assert report.ok, [(result.name, result.why) for result in report.of("failed")]


@pytest.mark.parametrize("area", PART)
def test_part_of_an_area(area: str) -> None:
    suite = Suite("tpu", areas=[area])
    checks = [check for check in suite.checks if check.name in PART[area]]
    assert len(checks) == len(PART[area])
    for check in checks:
        suite.run_one(check).require()


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("area", AREAS)
def test_area(area: str) -> None:
    report = Suite("tpu", areas=[area]).run()
    assert report.ok and not report.of("refused"), [(result.name, result.why) for result in (*report.of("failed"), *report.of("refused"))]

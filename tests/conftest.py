"""Options of the whole suite."""

from __future__ import annotations

from collections.abc import Generator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skips-fail", action="store_true", help="a test that cannot run here (missing tool or oracle) fails as NOT RUN")
    parser.addoption("--write-docs", action="store_true", help="tests that check a page of docs/ write it first")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure where --skips-fail asks for it: nobody may take a test that did not run for one that passed."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--skips-fail"):
        reason = call.excinfo.value if call.excinfo is not None else "skipped"
        report.outcome = "failed"
        report.longrepr = f"NOT RUN: {item.nodeid}: {reason}"
    return report

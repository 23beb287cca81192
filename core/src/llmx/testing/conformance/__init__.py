"""The conformance suite: what every platform passes, whoever wrote it. `llmx conformance --platform NAME` runs it.

In a package's own tests, one test per check:

    suite = Suite("acme")

    @pytest.mark.parametrize("check", suite.checks, ids=str)
    def test_conformance(check):
        suite.run_one(check).require()
"""

from llmx.testing.conformance.outcome import Check, Result
from llmx.testing.conformance.suite import AREAS, WAITING, Report, Suite, run

__all__ = ["AREAS", "WAITING", "Check", "Report", "Result", "Suite", "run"]

"""`llmx key`: the line that it writes, with limits and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmx_server.budgets import Budget, Ledger
from llmx_server.keys import KeyRing
from llmx_server.limits import Limits
from tests.cli.conftest import Ran


def test_limits_are_written_and_read(llmx: Callable[..., Ran], tmp_path: Path) -> None:
    file = str(tmp_path / "keys")
    assert llmx("key", "plain", "--file", file).code == 0
    assert llmx("key", "web", "--scope", "generate", "--rpm", "60", "--tpm", "1000", "--file", file).code == 0
    ring = KeyRing((), file)
    plain, web = ring.named("plain"), ring.named("web")
    assert plain and web and (plain.limits, web.limits) == (Limits(), Limits(60, 1000))
    for words in (("--rpm", "0"), ("--tpm", "-1"), ("--tpm", "9" * 16), ("--budget-tokens", "0"), ("--budget-tokens", "5", "--budget-period", "week")):
        assert llmx("key", "other", *words).code == 2, words


def test_budgets_are_written_and_listed(llmx: Callable[..., Ran], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert llmx("key", "web", "--rpm", "60", "--budget-tokens", "5000", "--budget-period", "month", "--file", str(file)).code == 0
    assert llmx("key", "root", "--scope", "admin", "--file", str(file)).code == 0
    found = KeyRing((), str(file)).named("web")
    assert found and found.limits == Limits(60, 0, Budget(5000, "month")) and " budget=5000/month " in file.read_text()
    ledger = Ledger(file)
    ledger.account("web").add(1234, "month")
    ledger.save()
    listed = [line.split() for line in llmx("key", "list", "--file", str(file)).out.splitlines()]
    assert listed == [
        ["NAME", "SCOPES", "RPM", "TPM", "BUDGET", "USED"], ["web", "generate,embed", "60", "-", "5000/month", "1234"], ["root", "admin", "-", "-", "-", "-"],
    ]  # fmt: skip
    assert llmx("key", "list").code == 2

"""`llmx key`: makes an API key and writes its line into a file for `llmx serve --api-key-file`; `llmx key list` shows the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from llmx_cli.table import print_table

__all__ = ["key"]


def key(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Who uses it: shown in messages, never the key itself. list: show the keys of --file.")],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Append the line to this file; without it, it is printed.")] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="SCOPE", help="generate, embed or admin; several are allowed. Default: generate and embed.")
    ] = None,
    rpm: Annotated[int | None, typer.Option("--rpm", metavar="N", min=1, help="Requests a minute at most. Default: no limit.")] = None,
    tpm: Annotated[int | None, typer.Option("--tpm", metavar="N", min=1, help="Tokens a minute at most, prompts and answers. Default: no limit.")] = None,
    budget_tokens: Annotated[
        int | None, typer.Option("--budget-tokens", metavar="N", min=1, help="Tokens in the period at most, prompts and answers. Default: no limit.")
    ] = None,
    budget_period: Annotated[
        str, typer.Option("--budget-period", metavar="PERIOD", help="What the budget is for: day, month (of UTC), or total: no new one begins.")
    ] = "total",
) -> int:
    """Make a key. It is shown once: the file holds a salted hash of it only. A running server reads the file when it changes."""
    from llmx.errors import ConfigError
    from llmx_server.budgets import PERIODS, Budget
    from llmx_server.keys import KeyRing, new_key
    from llmx_server.limits import Limits

    if name == "list":
        return _list(file)
    period = next((one for one in PERIODS if one == budget_period), None)
    if period is None:
        raise ConfigError(f"--budget-period is {budget_period!r}: it must be one of {', '.join(PERIODS)}", field="budget_period")
    limits = Limits(rpm or 0, tpm or 0, Budget(budget_tokens or 0, period))
    made, line = new_key(name, tuple(scope or ("generate", "embed")), limits)
    if file is not None:
        if file.exists() and KeyRing((), str(file)).named(name):
            raise ConfigError(f"{file} has a key named {name!r} already: remove its line first, or take another name", field="name")
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as out:
            out.write(line + "\n")
    typer.echo(f"key   {made}")
    typer.echo(f"line  {line}" if file is None else f"file  {file}: {line.rpartition(' ')[0]}")
    return 0


def _list(file: Path | None) -> int:
    from llmx.errors import ConfigError
    from llmx_server.budgets import used_by_key
    from llmx_server.keys import SCOPES, KeyRing

    if file is None:
        raise ConfigError("--file is missing: it names the file whose keys are shown", field="file")
    rows = []
    for one in KeyRing((), str(file)).filed():
        limits, budget = one.limits, one.limits.budget
        used = str(used_by_key(file, one.name, budget.period)) if budget.tokens else "-"
        scopes = ",".join(scope for scope in SCOPES if scope in one.scopes)
        rows.append([one.name, scopes, str(limits.rpm or "-"), str(limits.tpm or "-"), f"{budget.tokens}/{budget.period}" if budget.tokens else "-", used])
    print_table(["NAME", "SCOPES", "RPM", "TPM", "BUDGET", "USED"], rows)
    return 0

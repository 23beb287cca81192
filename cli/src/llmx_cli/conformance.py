"""`llmx conformance`: runs the suite that every platform passes, and says what was refused or not run, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmx_cli.table import print_table

if TYPE_CHECKING:
    from llmx.testing.conformance import Report, Result

__all__ = ["conformance"]


def conformance(
    platform: Annotated[str, typer.Option("--platform", metavar="NAME", help="The installed platform to check.")],
    emulate: Annotated[bool, typer.Option("--emulate", help="Without its hardware: its device is torch's cpu, whatever its probe says.")] = False,
    area: Annotated[list[str] | None, typer.Option("--area", metavar="AREA", help="Check this area alone; may be given several times.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Also write everything to this file, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead of a table.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print each check as it ends, on stderr.")] = False,
) -> int:
    """Check a platform against everything that core asks of one. Exit code 1 when a check failed, 0 otherwise."""
    from llmx.testing.conformance import Suite

    def show(result: Result) -> None:
        if verbose:
            typer.echo(f"{result.area}: {result.name}: {result.outcome} ({result.seconds:.2f} s)", err=True)

    report = Suite(platform, emulate=emulate, areas=area).run(show)
    text = json.dumps(report.as_dict(), indent=2)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        _print(report)
    return 0 if report.ok else 1


def _print(report: Report) -> None:
    """A row per area, then failures, refusals, and what was not run, with their reasons."""
    from llmx.testing.conformance import WAITING

    facts = report.facts
    emulated = "; emulated on torch's cpu device, not its hardware" if facts["emulated"] else ""
    typer.echo(f"{facts['platform']} ({facts['dist']}, API {facts['api'][0]}.{facts['api'][1]}) on {facts['device']}{emulated}")
    if not facts["exact"]:
        typer.echo("it refuses --dtype float32: results are compared loosely (3% of the largest value)")
    typer.echo("")
    print_table(("area", "passed", "failed", "refused", "not run"), report.rows())
    for result in report.of("failed"):
        typer.echo("")
        typer.secho(f"FAILED {result.area}: {result.name}", bold=True)
        typer.echo(result.why)
    if report.of("refused"):
        typer.secho("\nrefused by the platform, which it may", bold=True)
        print_table(("area", "case", "reason"), [(r.area, r.name, r.why) for r in report.of("refused")])
    left_out: dict[tuple[str, str], list[str]] = {}
    for result in report.of("not run"):
        left_out.setdefault((result.area, result.why), []).append(result.name)
    if left_out:
        typer.secho("\nnot run", bold=True)
        print_table(("area", "checks", "reason"), [(area, str(len(names)) if len(names) > 1 else names[0], why) for (area, why), names in left_out.items()])
    typer.secho("\nnot in this suite yet", bold=True)
    print_table(("area", "waits for"), list(WAITING.items()))
    counts = report.counts()
    typer.secho(f"\n{'passed' if report.ok else 'FAILED'}: {counts['passed']} checks passed, {counts['failed']} failed", bold=True)

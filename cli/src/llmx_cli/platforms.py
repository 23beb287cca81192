"""`llmx platforms`: what is installed, what is present, what would be chosen, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from llmx_cli.options import Settings
from llmx_cli.table import print_table

__all__ = ["platforms"]


def platforms(
    platform: Annotated[str | None, typer.Option("--platform", metavar="NAME", help="Show the choice when this platform is named.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON: also what each platform says of its device, and its variables.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the tracebacks of broken probes.")] = False,
) -> int:
    """Show which platforms are installed, present and chosen, and why. Exit code 2 when none can be chosen."""
    from llmx.engine.platforms import list_platforms
    from llmx.errors import PlatformError

    config, _ = Settings({"platform": platform} if platform else {}).resolve()
    rows = list_platforms(config)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    elif rows:
        table = [(row.name, row.dist, "yes" if row.present else "no", "*" if row.chosen else "", row.problem or row.why) for row in rows]
        print_table(("platform", "installed as", "present", "chosen", "why"), table)
    if verbose:
        for row in rows:
            if row.probe_error:
                typer.echo(row.probe_error, err=True)
    chosen = next((row for row in rows if row.chosen), None)
    if chosen is None:
        raise PlatformError(rows[0].choice if rows else "no platform is installed: pip install llmx-platform-cpu")
    if not as_json:
        typer.echo(f"\n{chosen.name}: {chosen.choice}")
    return 0

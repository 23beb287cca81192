"""`llmx platforms`: what is installed, what is present, what would be chosen, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from llmx_cli.options import Settings
from llmx_cli.table import print_table

__all__ = ["platforms"]


def platforms(
    platform: Annotated[str | None, typer.Option("--platform", metavar="NAME", help="Show the choice when this platform is named.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the tracebacks of broken probes.")] = False,
) -> int:
    """Show which platforms are installed, present and chosen, and why. Exit code 4 when none can be chosen."""
    from llmx.errors import PlatformError
    from llmx.hooks.loader import PluginLoader
    from llmx.platform.select import select_platform
    from llmx.resolve import probe_environment

    config, _ = Settings({"platform": platform} if platform else {}).resolve()
    probes = PluginLoader.discover(config.platform).probe_all(probe_environment())
    chosen, problem = None, None
    try:
        chosen = select_platform(probes, config.platform.name)
    except PlatformError as error:
        problem = error  # told after the table, which shows the reasons
    rows = []
    for probe in sorted(probes, key=lambda probe: probe.name):
        found = probe.detection
        why = probe.error.strip().splitlines()[-1] if probe.error else found.why if found else ""
        rows.append((probe.name, probe.dist, "yes" if found and found.present else "no", "*" if chosen and chosen.name == probe.name else "", why))
        if verbose and probe.error:
            typer.echo(probe.error, err=True)
    if rows:
        print_table(("platform", "installed as", "present", "chosen", "why"), rows)
    if problem is not None:
        raise problem
    assert chosen is not None
    typer.echo(f"\n{chosen.name}: {chosen.why}")
    return 0

"""`llmx version`: the installed llmx packages."""

from __future__ import annotations

import typer

__all__ = ["version"]


def version() -> None:
    """Show the versions of the installed llmx packages."""
    import platform
    from importlib.metadata import distributions

    from llmx import __version__

    typer.echo(f"llmx {__version__}")
    found = {(dist.name or "").lower(): dist.version for dist in distributions()}
    for name in sorted(name for name in found if name.startswith("llmx-")):
        typer.echo(f"  {name} {found[name]}")
    typer.echo(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")

"""A command that has subcommands; alone it shows its help."""

from __future__ import annotations

import typer

__all__ = ["group"]


def group(purpose: str) -> typer.Typer:
    """An empty group. purpose: what its help says."""
    app = typer.Typer(help=purpose, add_completion=False, rich_markup_mode=None, invoke_without_command=True)

    @app.callback()
    def _alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return app

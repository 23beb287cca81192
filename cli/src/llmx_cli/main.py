"""The `llmx` command: registers the commands and turns every error into one line and an exit code.

Command modules import the engine inside their functions: `llmx --help` and a mistyped option must answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from llmx_cli import bench, chat, complete, explain, models, platforms, pull, serve, version
from llmx_cli.errors import FAILED, report

__all__ = ["app", "run"]

app = typer.Typer(name="llmx", help="Serve and run large language models.", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("complete")(complete.complete)
app.add_typer(bench.app, name="bench")
app.command("pull")(pull.pull)
app.command("list")(models.list_)
app.command("show")(models.show)
app.command("rm")(models.remove)
app.command("platforms")(platforms.platforms)
app.command("explain")(explain.explain)
app.command("version")(version.version)


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and end.")] = False,
) -> None:
    if show_version:
        version.version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (by default the process's own); the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = typer.main.get_command(app).main(args=given, prog_name="llmx", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        # The reader of our output has gone (`llmx explain ... | head`). Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:  # noqa: BLE001  the border to the user: nothing may end in a bare traceback
        return report(error, verbose="--verbose" in given)

"""The `llmx` command: finds the command that was named, and turns every error into one line and an exit code.

A command's module is imported when the command is used, and the engine inside its function: `llmx --help` and a mistyped
option must answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from llmx_cli.errors import FAILED, INTERRUPTED, report
from llmx_cli.plugin_flags import with_plugin_flags

if TYPE_CHECKING:
    from llmx.engine.spawn import EngineProcess

__all__ = ["COMMANDS", "app", "run"]

# section -> command -> where it is, and what it is for
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Run a model": {
        "serve": ("serve:serve", "Serve a model over an OpenAI-compatible HTTP API."),
        "chat": ("chat:chat", "Chat on the terminal, with a model here or a server."),
        "run": ("chat:run", "The same as chat."),
        "complete": ("complete:complete", "Continue a text, with a model here or a server."),
        "run-batch": ("run_batch:run_batch", "Answer a file of requests (JSON lines), with a model here."),
    },
    "Serve": {
        "models": ("served:app", "List, load and unload the models of a running server."),
        "key": ("key:key", "Make an API key with a name and scopes, for --api-key-file."),
    },
    "Models": {
        "pull": ("pull:pull", "Fetch a model from the Hugging Face hub."),
        "list": ("models:list_", "List the models on this machine."),
        "show": ("models:show", "Show a model: architecture, storage, context, licence, files."),
        "rm": ("models:remove", "Remove fetched models."),
    },
    "Look and measure": {
        "explain": ("explain:explain", "Platform, kernels and memory that a model would use, and why."),
        "platforms": ("platforms:platforms", "Platforms that are installed, present and chosen, and why."),
        "config": ("config:app", "Show every option with its value and where it comes from."),
        "doctor": ("doctor:doctor", "Find what is wrong with this installation, and how to mend it."),
        "bench": ("bench:app", "Measure a model here, or what clients of a server see."),
        "version": ("version:version", "The installed llmx packages."),
    },
    "Write a platform or a plugin": {
        "plugin": ("plugin:app", "Write a package of your own: a platform, kernels, or a plugin."),
        "conformance": ("conformance:conformance", "Check a platform against everything that core asks of one."),
    },
}

# what other tools call it -> what to type here
_ELSEWHERE = {
    "collect-env": "llmx doctor",
    "ls": "llmx list",
    "ps": "llmx platforms",
    "info": "llmx show MODEL",
    "remove": "llmx rm MODEL",
    "delete": "llmx rm MODEL",
    "download": "llmx pull MODEL",
    "generate": "llmx complete MODEL TEXT",
    "benchmark": "llmx bench throughput",
    "start": "llmx serve",
    "server": "llmx serve",
    "help": "llmx --help",
    "batch": "llmx run-batch -i FILE -o FILE",
}

_WORDS = "llmx.words"  # in a context's meta: what follows the command's name
_EXIT_CODES = "Exit codes: 0 done; 1 something failed while it ran; 2 it did not start, and the message says what to do; 130 Ctrl-C."


class _Commands(TyperGroup):
    """Commands by name, imported when used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the help."""
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or None."""
        place = next((section[cmd_name][0] for section in COMMANDS.values() if cmd_name in section), None)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        found = getattr(import_module(f"llmx_cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(cmd_name)(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = cmd_name
        command = with_plugin_flags(command, ctx.meta.get(_WORDS, ()))
        for parameter in command.params:
            _skip_absent(parameter)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As always; for a name that is none, what was probably meant."""
        name, names = args[0], self.list_commands(ctx)
        ctx.meta[_WORDS] = args[1:]
        if name not in names and not name.startswith("-"):
            near = get_close_matches(name, names, n=1)
            meant = f"use {_ELSEWHERE[name]}" if name in _ELSEWHERE else f"did you mean 'llmx {near[0]}'?" if near else "`llmx --help` lists them"
            raise typer.BadParameter(f"there is no command {name!r}: {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands in sections; none is imported for it."""
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])


def _skip_absent(parameter: Any) -> None:
    """Leave out the check of a value that is not given: typer would make a validator for each parameter, a fifteenth of a start."""
    process = parameter.process_value
    if not parameter.required and parameter.callback is None:
        parameter.process_value = lambda ctx, value: value if value is None else process(ctx, value)


app = typer.Typer(
    name="llmx", cls=_Commands, help="Serve and run large language models.", epilog=_EXIT_CODES, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", "-v", help="Show the version and end.")] = False,
) -> None:
    if show_version:
        from llmx_cli.version import version

        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None, spawned: EngineProcess | None = None) -> int:
    """Runs a command line (by default the process's own); the exit code. spawned: an engine process for `serve`, which else spawns one."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = typer.main.get_command(app).main(args=given, prog_name="llmx", standalone_mode=False, obj=spawned)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        # The reader of our output has gone (`llmx explain ... | head`). Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  the border to the user: nothing may end in a bare traceback
        return report(error, verbose="--verbose" in given)

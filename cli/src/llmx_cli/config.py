"""`llmx config show`: every option with its value, where the value comes from, and what it may be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx.options import OPTIONS, Option, PluginOption
from llmx_cli.group import group
from llmx_cli.options import Settings, with_settings
from llmx_cli.table import print_table

if TYPE_CHECKING:
    from llmx.config import EngineConfig

__all__ = ["app", "show"]

app = group("Show every option with its value and where it comes from.")


@app.command()
@with_settings(server=True)
def show(
    settings: Settings,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not the default.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Show what `llmx serve` would take with the same options: flags go before the file (--config, LLMX_CONFIG), the file before the environment (LLMX_*)."""
    config, changes = settings.resolve()
    sources = {change.path: change.source for change in changes}
    found = [
        {"option": option.name, "value": _value(config, option), "source": sources.get(option.path, "default"), "variable": option.variable}
        for option in (*OPTIONS, *settings.plugin_options())
        if option.path in sources or not changed
    ]
    found += [{"option": name, "value": value, "source": "env", "variable": name} for name, value in config.platform.options]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    if not found:
        typer.echo("every option has its default")
        return
    print_table(("option", "value", "source"), [(one["option"], _shown(one["value"]), one["source"]) for one in found])


def _value(config: EngineConfig, option: Option) -> Any:
    """A value as JSON has it; secrets are hidden."""
    section, _, name = option.path.partition(".")
    if isinstance(option, PluginOption):
        value = config.plugins.get(option.plugin, {}).get(option.key, option.default)
    else:
        value = getattr(getattr(config, section), name)
    if option.secret and value:
        return "(hidden)"
    return [list(item) if isinstance(item, tuple) else item for item in value] if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    """None means: derived from the model or the machine when the engine starts."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join("=".join((str(one[0]), ",".join(one[1]))) if isinstance(one, list) else str(one) for one in value) or "-"
    return json.dumps(value) if isinstance(value, dict) else str(value) or "-"

"""Options of plugins as flags: a command takes them when one is written or its help is asked for; plugins are not imported otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from llmx.errors import LlmxError

if TYPE_CHECKING:
    from llmx.options import PluginOption

__all__ = ["with_plugin_flags"]

_LISTS = ("allow_plugin", "deny_plugin")


def with_plugin_flags(command: Any, words: Sequence[str]) -> Any:
    """The command, or each command of a group, with the options of plugins where `words`, which follow the command's name, need them."""
    for leaf in getattr(command, "commands", {"": command}).values():
        widened = getattr(leaf.callback, "widened", None)
        if widened is None:
            continue
        asks_help = "--help" in words
        flags = {flag for parameter in leaf.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        if not asks_help and all(word.partition("=")[0] in flags for word in words if word.startswith("--") and word != "--"):
            continue
        if options := _installed(words, asks_help):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command()(widened(options))
            wide: Any = typer.main.get_command(alone)
            leaf.params, leaf.callback = wide.params, wide.callback
    return command


def _installed(words: Sequence[str], asks_help: bool) -> tuple[PluginOption, ...]:
    from llmx.resolve import plugin_options

    said = {name: _said(words, f"--{name.replace('_', '-')}") for name in (*_LISTS, "platform", "config")}
    options = {name: values if name in _LISTS else values[-1] for name, values in said.items() if values}
    config_file: Any = options.pop("config", None)
    with suppress(*[LlmxError] if asks_help else []):  # a help page is shown whatever else is wrong
        return plugin_options(options, config_file=config_file)
    return ()


def _said(words: Sequence[str], flag: str) -> list[str]:
    """The values that a flag has among the words, as `--flag VALUE` or `--flag=VALUE`."""
    behind = [after for word, after in zip(words, words[1:], strict=False) if word == flag]
    return [*behind, *(word.removeprefix(f"{flag}=") for word in words if word.startswith(f"{flag}="))]

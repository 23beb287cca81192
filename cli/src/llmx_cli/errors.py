"""Errors as one readable line on stderr, and the exit code that tells their kind."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable

import typer

from llmx.errors import ConfigError, LlmxError, ModelError, PlatformError, PluginError
from llmx.foreign_options import foreign_reason

__all__ = ["FAILED", "INTERRUPTED", "REFUSED", "UsageError", "exit_code", "report"]

FAILED = 1  # something broke while it ran
REFUSED = 2  # it did not start: an option, the model, the platform or a plugin is wrong, and the message says what to do
INTERRUPTED = 130  # Ctrl-C, as shells have it

# The class that all of typer's complaints about a command line share. typer brings its own copy of click, whose module has
# no public name; BadParameter is the public one nearest to it.
UsageError: type[Exception] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


def exit_code(error: BaseException) -> int:
    """Exit code for an error."""
    if isinstance(error, ConfigError | ModelError | PlatformError | PluginError | UsageError):
        return REFUSED
    return FAILED


def report(error: BaseException, *, verbose: bool) -> int:
    """Prints an error to stderr; its exit code. Only `verbose` shows more than one line."""
    if verbose:
        traceback.print_exception(error)
    lines = _message(error).strip().splitlines() or [type(error).__name__]
    more = " (more with --verbose)" if len(lines) > 1 and not verbose else ""
    sys.stderr.write(f"error: {lines[0]}{more}\n")
    return exit_code(error)


def _message(error: BaseException) -> str:
    if isinstance(error, UsageError) and hasattr(error, "possibilities"):
        return _unknown_option(str(error.option_name), error.possibilities or ())  # type: ignore[attr-defined]
    if isinstance(error, UsageError):  # a BadParameter of our own has no parameter, and needs no "Invalid value" before it
        extra = re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", getattr(error, "message", ""))
        if extra is not None:
            return f"what is {extra[1]!r} for? An option with several values is given several times: --api-key A --api-key B; a text needs quotes"
        return str(error.message if getattr(error, "param", None) is None else error.format_message())  # type: ignore[attr-defined]
    if isinstance(error, LlmxError):
        return str(error)
    return f"{type(error).__name__}: {error}; this is a fault of llmx, --verbose shows where"


def _unknown_option(flag: str, near: Iterable[str]) -> str:
    """Of other engines' options it is told why there is none; else the nearest is named."""
    name = flag.lstrip("-").replace("-", "_")
    why = foreign_reason(name) or foreign_reason(name.removeprefix("no_"))
    if why is not None:
        return f"{flag}: {why}"
    close = next(iter(near), None)
    return f"no such option: {flag}" + (f"; did you mean {close}?" if close else "; --help lists them")

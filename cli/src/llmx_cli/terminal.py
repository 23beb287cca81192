"""Reading a user's lines and showing answers as they come."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import typer

from llmx.errors import RequestError

__all__ = ["read_lines", "show"]


def read_lines(prompt: str) -> Iterator[str]:
    """The user's lines until the input ends; with a prompt and line editing on a terminal, plain from a pipe."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    import readline  # noqa: F401  gives input() its editing and history

    while True:
        try:
            yield input(prompt)
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()  # a line thought better of; Ctrl-D or /quit leaves


def show(pieces: Iterator[str], *, stop_on_interrupt: bool) -> str | None:
    """Prints pieces as they come; the whole text. None when the request was refused, which is printed.

    stop_on_interrupt: Ctrl-C ends this answer only.
    """
    text = ""
    try:
        for piece in pieces:
            text += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not stop_on_interrupt:
            raise
    except RequestError as error:
        if not stop_on_interrupt:
            raise
        typer.echo(f"error: {error}", err=True)
        return None
    sys.stdout.write("\n")
    sys.stdout.flush()
    return text

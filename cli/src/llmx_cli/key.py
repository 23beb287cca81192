"""`llmx key`: makes an API key and writes its line into a file for `llmx serve --api-key-file`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["key"]


def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who uses it: shown in messages, never the key itself.")],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Append the line to this file; without it, it is printed.")] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="SCOPE", help="generate, embed or admin; several are allowed. Default: generate and embed.")
    ] = None,
    rpm: Annotated[int | None, typer.Option("--rpm", metavar="N", min=1, help="Requests a minute at most. Default: no limit.")] = None,
    tpm: Annotated[int | None, typer.Option("--tpm", metavar="N", min=1, help="Tokens a minute at most, prompts and answers. Default: no limit.")] = None,
) -> int:
    """Make a key. It is shown once: the file holds a salted hash of it only. A running server reads the file when it changes."""
    from llmx.errors import ConfigError
    from llmx_server.keys import KeyRing, new_key
    from llmx_server.limits import Limits

    made, line = new_key(name, tuple(scope or ("generate", "embed")), Limits(rpm or 0, tpm or 0))
    if file is not None:
        if file.exists() and name in KeyRing((), str(file)).names():
            raise ConfigError(f"{file} has a key named {name!r} already: remove its line first, or take another name", field="name")
        with open(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as out:
            out.write(line + "\n")
    typer.echo(f"key   {made}")
    typer.echo(f"line  {line}" if file is None else f"file  {file}: {line.rpartition(' ')[0]}")
    return 0

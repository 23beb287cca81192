"""Plain text tables: columns aligned, nothing cut, so that they read well on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

import typer

__all__ = ["print_table"]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; the last column is not padded."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    typer.secho(_line(header, widths), bold=True)  # no escape codes unless stdout is a terminal, and none with NO_COLOR
    for row in rows:
        typer.echo(_line(row, widths))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

"""Transfer: how far a download is."""

from __future__ import annotations

from collections.abc import Callable

from llmx.record import record

__all__ = ["OnTransfer", "Transfer", "file_size"]


@record
class Transfer:
    """How far a download is. done, size: bytes of `file`, of which `resumed` were here already; total_done, total_size: of all files."""

    file: str
    done: int
    size: int
    resumed: int
    total_done: int
    total_size: int


OnTransfer = Callable[[Transfer], None]


def file_size(number: int) -> str:
    """A number of bytes for people, in decimal units."""
    size, unit = float(number), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f} {unit}" if unit != "B" else f"{number} B"

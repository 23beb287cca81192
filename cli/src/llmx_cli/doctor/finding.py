"""Finding: one thing that a check saw."""

from __future__ import annotations

from typing import Literal

from llmx.record import record

__all__ = ["Finding"]


@record
class Finding:
    """check: what was looked at. level: an error keeps a model from being served, a warning does not. fix: a command, "" where nothing is wrong."""

    check: str
    level: Literal["ok", "warning", "error"]
    what: str
    where: str = ""
    fix: str = ""

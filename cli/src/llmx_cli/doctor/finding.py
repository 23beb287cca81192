"""Finding: one thing that a check saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """check: what was looked at. level: an error keeps a model from being served, a warning does not. fix: a command, "" where nothing is wrong."""

    check: str
    level: Literal["ok", "warning", "error"]
    what: str
    where: str = ""
    fix: str = ""

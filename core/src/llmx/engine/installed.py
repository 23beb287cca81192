"""The llmx distributions of this Python environment, and whether they fit together."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["installed", "version_skew"]

_INFO = re.compile(r"(llmx[_-][\w.-]+?)-[^-]+\.(?:dist|egg)-info$", re.IGNORECASE)
_RELEASED_TOGETHER = ("llmx-core", "llmx-cli", "llmx-server", "llmx-llguidance", "llmx-platform-cpu")


def installed() -> dict[str, str]:
    """Name -> version of every installed distribution whose name begins with "llmx-"."""
    # By the names of their folders: to ask each distribution for its name would parse all that is installed, at every start.
    names = {match[1].replace("_", "-").lower() for place in sys.path for match in map(_INFO.match, _listing(place)) if match}
    found = {}
    for name in sorted(names):
        with suppress(PackageNotFoundError):
            told: str | None = version(name)  # of the first of that name on sys.path, which is the one that is imported
            if told:  # None: a folder that is left over, without metadata
                found[name] = told
    return found


def _listing(place: str) -> list[str]:
    try:
        return [path.name for path in Path(place or ".").iterdir() if path.name.lower().startswith("llmx")]
    except OSError:
        return []  # sys.path also names archives and folders that are not there


def version_skew(found: Mapping[str, str]) -> tuple[str, str] | None:
    """(what is wrong, the command that mends it) when packages that are released together have several versions."""
    own = {name: version for name, version in found.items() if name in _RELEASED_TOGETHER}
    if len(set(own.values())) <= 1:
        return None
    listed = ", ".join(f"{name} {version}" for name, version in sorted(own.items()))
    return f"llmx packages of different versions are installed ({listed})", f"pip install -U {' '.join(sorted(own))}"

"""The llmx distributions of this Python environment, and whether they fit together."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import distributions

__all__ = ["installed", "version_skew"]

_RELEASED_TOGETHER = ("llmx-core", "llmx-cli", "llmx-server", "llmx-platform-cpu")


def installed() -> dict[str, str]:
    """Name -> version of every installed distribution whose name begins with "llmx-"."""
    found: dict[str, str] = {}
    for dist in distributions():  # in the order of sys.path: the first of a name is the one that is imported
        name = (dist.name or "").lower()
        if name.startswith("llmx-"):
            found.setdefault(name, dist.version)
    return dict(sorted(found.items()))


def version_skew(found: Mapping[str, str]) -> tuple[str, str] | None:
    """(what is wrong, the command that mends it) when packages that are released together have several versions."""
    own = {name: version for name, version in found.items() if name in _RELEASED_TOGETHER}
    if len(set(own.values())) <= 1:
        return None
    listed = ", ".join(f"{name} {version}" for name, version in sorted(own.items()))
    return f"llmx packages of different versions are installed ({listed})", f"pip install -U {' '.join(sorted(own))}"

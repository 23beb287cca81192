"""The version of this server."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

__all__ = ["version"]

_SOURCE_VERSION = "0.1.0"  # of a source tree that was not installed; a test compares it with pyproject.toml


@cache
def version() -> str:
    """The installed version of llmx-server, or that of the source tree."""
    try:
        return installed_version("llmx-server")
    except PackageNotFoundError:
        return _SOURCE_VERSION

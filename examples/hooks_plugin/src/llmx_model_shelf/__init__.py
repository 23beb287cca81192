"""The smallest useful plugin: every ~/models/NAME.gguf can be served as NAME.

A plugin's module holds hook implementations and imports little: it is loaded by each process that llmx starts.
"""

from __future__ import annotations

from pathlib import Path

from llmx.hooks import hookimpl

__all__ = ["llmx_model_sources"]


@hookimpl
def llmx_model_sources() -> dict[str, str]:
    """Short model names -> files."""
    return {path.stem.lower(): str(path) for path in sorted((Path.home() / "models").glob("*.gguf"))}

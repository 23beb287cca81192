"""The model families that core itself brings."""

from __future__ import annotations

from llmx.models.llama import llama_models
from llmx.models.registry import ModelRegistry

__all__ = ["builtin_models"]


def builtin_models() -> ModelRegistry:
    """A new registry with core's own families. Plugins' definitions are merged into it."""
    return ModelRegistry(llama_models())

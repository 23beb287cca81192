"""The model families that core itself brings."""

from __future__ import annotations

from llmx.models.llama import llama_models
from llmx.models.registry import ModelDef, ModelRegistry

__all__ = ["builtin_definitions", "builtin_models"]


def builtin_definitions() -> list[ModelDef]:
    """All families of core; a new one is added here."""
    return list(llama_models())


def builtin_models() -> ModelRegistry:
    """A new registry with core's own families alone."""
    return ModelRegistry(builtin_definitions())

"""Core's own families, offered through the hook that plugins use."""

from __future__ import annotations

import pluggy

from llmx.hooks.specs import hookimpl
from llmx.models.builtin import builtin_definitions
from llmx.models.registry import ModelDef, ModelRegistry

__all__ = ["CoreModels", "registry_from"]


class CoreModels:
    """The plugin that brings the built-in families."""

    @hookimpl
    def llmx_models(self) -> list[ModelDef]:
        """All families of core."""
        return builtin_definitions()


def registry_from(manager: pluggy.PluginManager) -> ModelRegistry:
    """A registry with the families of every plugin, core's included. Raises ModelError for a name registered twice."""
    registry = ModelRegistry()
    for definitions in reversed(manager.hook.llmx_models()):  # pluggy answers last registered first: core's come first
        registry.merge(definitions)
    return registry

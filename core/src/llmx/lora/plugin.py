"""Core's own way to find adapters, offered through the hook that plugins use."""

from __future__ import annotations

from llmx.config import EngineConfig
from llmx.hooks.specs import hookimpl
from llmx.hooks.types import LoraResolverDef

__all__ = ["CoreResolvers"]


class CoreResolvers:
    """The plugin that brings the folder of --lora-dir."""

    @hookimpl
    def llmx_lora_resolvers(self, config: EngineConfig) -> list[LoraResolverDef]:
        """folder, where one is set."""
        return [LoraResolverDef("folder", "llmx.lora.folder:FolderResolver")] if config.lora.folder else []

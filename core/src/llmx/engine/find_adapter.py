"""find_adapter: an adapter that nobody loaded, looked for by its name when a request brings it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmx.config import EngineConfig

if TYPE_CHECKING:
    from llmx.engine.steering import Steering

__all__ = ["find_adapter", "may_have"]


async def find_adapter(config: EngineConfig, steering: Steering, name: str) -> bool:
    """Whether there is an adapter of this name, loaded now where a resolver or the hub has it. Raises RequestError."""
    if await steering.resolve_adapter(name):
        return True
    if not config.lora.hub:
        return False
    if steering.hub_adapters is None:
        from llmx.engine.hub_adapters import HubAdapters  # for those who allow it

        steering.hub_adapters = HubAdapters(config)
    return await steering.hub_adapters.load(steering, name) is not None


def may_have(config: EngineConfig, name: str) -> bool:
    """Whether a model whose engine does not run would find it: in the folder of --lora-dir, or on the hub. No connection is made."""
    if config.lora.folder:
        from llmx.lora.folder import FolderResolver  # for those who have one

        if FolderResolver(config)(name) is not None:
            return True
    if not config.lora.hub:
        return False
    from llmx.engine.hub_adapters import allowed_name  # for those who allow it

    return allowed_name(config, name) is not None

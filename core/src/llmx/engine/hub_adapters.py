"""LoRA adapters by their names on the hub: those that --lora-hub allows, fetched when a request first names one."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from llmx.config import EngineConfig
from llmx.engine.model_fetch import hub_of
from llmx.errors import ConfigError, ModelError, RequestError
from llmx.weights.hub_name import parse_hub_name

if TYPE_CHECKING:
    from llmx.engine.steering import Steering

__all__ = ["adapter_folder", "load_from_hub"]


def adapter_folder(config: EngineConfig, name: str) -> str | None:
    """Folder of the adapter `name` (ORG/NAME or ORG/NAME@REVISION), fetched where it is not here; None where --lora-hub does not allow it.

    A connection is made only for names that are allowed and not in the cache. Raises RequestError saying what went wrong.
    """
    try:
        found = parse_hub_name(name) if config.lora.hub else None
    except ConfigError:
        return None
    if found is None or found.quant is not None or not any(fnmatchcase(found.repo, allowed) for allowed in config.lora.hub):
        return None
    try:
        return hub_of(config.model).ensure_adapter(found)
    except ModelError as error:
        raise RequestError(f"adapter {name[:60]!r}: {error}", field="model") from error


async def load_from_hub(config: EngineConfig, steering: Steering, name: str) -> dict[str, Any] | None:
    """The facts about an adapter that the hub has, loaded now; None where there is none. Others are served meanwhile. Raises RequestError."""
    if not config.lora.hub:
        return None
    path = await asyncio.to_thread(adapter_folder, config, name)
    return None if path is None else await steering.load_adapter(name, path)

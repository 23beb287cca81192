"""What a drafter on the device asks of a start: its Programs beside the model's, and an executor that runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmx.config import EngineConfig
from llmx.draft.device import DeviceDrafter
from llmx.draft.start import ChosenDrafter
from llmx.errors import ConfigError
from llmx.executor.base import Limits

if TYPE_CHECKING:
    from llmx.models.load import LoadedModel
    from llmx.models.registry import ModelRegistry

__all__ = ["check_device", "with_programs"]


def with_programs(chosen: ChosenDrafter, loaded: LoadedModel, config: EngineConfig, registry: ModelRegistry) -> LoadedModel:
    """The model with what its drafter brings. Raises ConfigError for a model without tokens to guess, and where the two do not fit."""
    if loaded.pooling is not None:
        raise _error("the model gives vectors or scores, no tokens that could be guessed: leave it out")
    return chosen.drafter.join(loaded, config, registry) if isinstance(chosen.drafter, DeviceDrafter) else loaded


def check_device(chosen: ChosenDrafter | None, limits: Limits, platform: str) -> None:
    """Raise ConfigError for a drafter on the device where the executor runs none."""
    if chosen is not None and isinstance(chosen.drafter, DeviceDrafter) and not limits.has("device_drafts"):
        raise _error(f"method is {chosen.name!r}, but the executor of platform {platform!r} runs no Programs of drafters: take ngram or suffix")


def _error(why: str) -> ConfigError:
    return ConfigError(f"speculative_config: {why}", field="speculative_config")

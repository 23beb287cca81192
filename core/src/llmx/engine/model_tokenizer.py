"""A model's tokenizer alone, without an engine."""

from __future__ import annotations

from llmx.config import ModelConfig, PlatformConfig
from llmx.hooks.loader import PluginLoader
from llmx.models.load import read_model_info
from llmx.models.plugin import CoreModels, registry_from
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["load_tokenizer"]


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The tokenizer of a model that is on this machine; headers are read, no weights. Raises ModelError, ConfigError."""
    registry = registry_from(PluginLoader.discover(PlatformConfig()).activate(None, builtin=[CoreModels()]))
    return Tokenizer.load(read_model_info(config, registry).tokenizer)

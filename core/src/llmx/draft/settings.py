"""Values in --speculative-config, checked by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.errors import ConfigError

__all__ = ["number", "text", "whole_number"]


def text(settings: Mapping[str, Any], name: str) -> str | None:
    """A setting that is a text; None when it is not given. Raises ConfigError."""
    value = settings.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"speculative_config: {name} is {value!r}: it must be a text", field="speculative_config")
    return value


def whole_number(settings: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """An integer setting in low..high; None when it is not given. Raises ConfigError."""
    value = settings.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
        raise ConfigError(f"speculative_config: {name} is {value!r}: it must be a whole number in {low}..{high}", field="speculative_config")
    return value


def number(settings: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A setting in low..high; None when it is not given. Raises ConfigError."""
    value = settings.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high):
        raise ConfigError(f"speculative_config: {name} is {value!r}: it must be a number in {low:g}..{high:g}", field="speculative_config")
    return value

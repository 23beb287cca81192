"""custom_drafter: a drafter's class by its path, for those who do not want to write a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.draft.drafter import Drafter
from llmx.draft.settings import text
from llmx.errors import ConfigError
from llmx.hooks.loader import load_target

__all__ = ["custom_drafter"]


def custom_drafter(settings: Mapping[str, Any]) -> Drafter:
    """An object of the class `model` ("package.module:Class"), made with the other settings. Raises ConfigError for a path that gives no drafter."""
    path = text(settings, "model")
    if path is None or ":" not in path:
        raise _error(f"model is {path!r}: it must be the path of a class, as in package.module:Class")
    try:
        made = load_target(path)({name: value for name, value in settings.items() if name != "model"})
    except (ImportError, AttributeError, TypeError) as error:
        raise _error(f"model {path!r} cannot be used: {error}") from error
    if not callable(getattr(made, "begin", None)):
        raise _error(f"model {path!r} is no drafter: it has no method `begin` (llmx.draft.Drafter)")
    drafter: Drafter = made
    return drafter


def _error(why: str) -> ConfigError:
    return ConfigError(f"speculative_config: {why}", field="speculative_config")

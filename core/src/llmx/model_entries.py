"""Several models in one server: the entries of a configuration's list `models`, their names, and how they share memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmx.config import Change, EngineConfig
from llmx.errors import ConfigError
from llmx.options import OPTIONS

__all__ = ["check_entry", "check_names", "entries_of", "share_memory", "with_names"]

_SIZES = ("cache.kv_bytes", "cache.num_blocks", "cache.memory_fraction")
_OWN = frozenset({"tool_call_parser", "reasoning_parser"})  # of the server's options, those that say how one model writes
_MOST_FRACTION = 0.95  # of the free memory, all KV caches together


def entries_of(listed: Any) -> list[dict[str, Any]]:
    """The options of each model of a list `models`. Raises ConfigError."""
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"models is {listed!r}: it must be a list of models, each a name or options with `model` among them", field="models")
    return [check_entry({"model": one} if isinstance(one, str) else one, f"models[{index}]") for index, one in enumerate(listed)]


def check_entry(entry: Any, place: str) -> dict[str, Any]:
    """One model's options by name. place: what it is called in errors. Raises ConfigError when it names no model, or sets what belongs to the server."""
    if not isinstance(entry, Mapping) or not entry.get("model"):
        raise ConfigError(f"{place} is {entry!r}: it must be a model's name, or options with `model` among them", field="models")
    own = {str(name).replace("-", "_"): value for name, value in entry.items()}
    servers = {name for option in OPTIONS if option.path.startswith("server.") for name in (option.name, *option.aliases)}
    wrong = next((name for name in own if name in servers - _OWN), None)
    if wrong is not None:
        raise ConfigError(f"{place} sets {wrong}, which is of the whole server: set it beside models", field=wrong)
    return own


def with_names(shared: dict[str, Any], entries: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(shared options, entries) in which names that were given for all are each model's own, in the order of the models. Raises ConfigError."""
    names = shared.get("served_model_name") or []
    if len(entries) == 1 or not names:
        return shared, [dict(entry) for entry in entries]
    if len(names) != len(entries):
        many = f"{len(names)} names are given for {len(entries)} models"
        raise ConfigError(f"--served-model-name: {many}: give it once for each model, in their order, or not at all", field="served_model_name")
    left = {name: value for name, value in shared.items() if name != "served_model_name"}
    return left, [{"served_model_name": [name], **entry} for name, entry in zip(names, entries, strict=True)]


def share_memory(models: Sequence[tuple[EngineConfig, list[Change], frozenset[str]]]) -> list[tuple[EngineConfig, list[Change]]]:
    """The configurations, with what was set for all KV caches together split evenly among the models that set nothing of their own.

    The last of each triple: names of the options that are the model's own. Raises ConfigError when the shares are more than there is.
    """
    own = {name for option in OPTIONS if option.path in _SIZES for name in (option.name, *option.aliases)}
    sharing = sum(not (names & own) for _, _, names in models)
    found: list[tuple[EngineConfig, list[Change]]] = []
    for config, changes, names in models:
        if len(models) > 1 and not names & own:
            config, changes = _shared(config, changes, sharing)
        found.append((config, changes))
    by_share = [config.cache for config, _ in found if config.cache.kv_bytes is None and config.cache.num_blocks is None]
    total = sum(cache.memory_fraction for cache in by_share)
    if len(models) > 1 and total > _MOST_FRACTION + 1e-9:
        raise ConfigError(f"memory_fraction of the models is {total:.2f} in all: it must be at most {_MOST_FRACTION}", field="memory_fraction")
    return found


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError when two models of a server have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        remedy = "give each its own, with --served-model-name once for each model or served_model_name in the file's list models"
        raise ConfigError(f"two models have the name {twice!r}: {remedy}", field="served_model_name")


def _shared(config: EngineConfig, changes: list[Change], count: int) -> tuple[EngineConfig, list[Change]]:
    """One model's even share of the KV memory that was set for `count`. A number of blocks is for each: blocks of models differ in size."""
    cache = config.cache
    if cache.num_blocks is not None or count == 1:
        return config, changes
    if cache.kv_bytes is not None:
        cache = replace(cache, kv_bytes=cache.kv_bytes // count)
        change = Change("cache.kv_bytes", str(cache.kv_bytes), f"its share among {count} models")
    else:
        cache = replace(cache, memory_fraction=cache.memory_fraction / count)
        change = Change("cache.memory_fraction", f"{cache.memory_fraction:g}", f"its share among {count} models")
    return replace(config, cache=cache), [*(one for one in changes if one.path != change.path), change]

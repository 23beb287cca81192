"""The only reader of options, configuration file and environment: gives one frozen EngineConfig and what it changed.

Precedence: command line (or keyword), file, environment, default. A platform's patches come later (`apply_patches`) and
never override what the user set. Nothing is ignored: an unknown name or a wrong type is a ConfigError that names the nearest.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmx.config import Change, EngineConfig
from llmx.errors import ConfigError
from llmx.hooks.types import ConfigPatch
from llmx.options import OPTIONS, Option

__all__ = ["apply_patches", "child_environment", "platform_options", "probe_environment", "resolve"]

_SUFFIXES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}


def resolve(
    options: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None, config_file: str | None = None
) -> tuple[EngineConfig, list[Change]]:
    """EngineConfig from all sources, and one Change per value that is not a plain default.

    options: by option name; None values count as not given. environ: os.environ by default. Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    table = {name: option for option in OPTIONS for name in (option.name, *option.aliases)}
    changes: dict[str, Change] = {}
    config = EngineConfig()
    for source, values in (("env", _from_environment(environ)), ("file", _from_file(config_file)), ("cli", dict(options or {}))):
        for name, raw in values.items():
            if raw is None:
                continue
            option = table.get(name)
            if option is None:
                raise ConfigError(_unknown(name, table), field=name)
            value = _convert(option, raw, f"LLMX_{option.name.upper()}" if source == "env" else option.flag)
            config = set_path(config, option.path, value)
            changes[option.path] = Change(option.path, "(hidden)" if option.secret else str(value), source)
    config = set_path(config, "platform.options", platform_options(environ))
    if config.model.cache_dir is None:
        config = set_path(config, "model.cache_dir", _cache_dir(environ))
    _check(config)
    return config, list(changes.values())


def platform_options(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The platform variables LLMX_<PLATFORM>_* that are set: everything with the prefix that is no option of core."""
    own = {f"LLMX_{option.name.upper()}" for option in OPTIONS}
    return tuple(sorted((name, value) for name, value in environ.items() if name.startswith("LLMX_") and name not in own))


def _cache_dir(environ: Mapping[str, str]) -> str | None:
    """The user's cache folder by the XDG rules; None where there is no home."""
    base, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(home, ".cache") if os.path.isabs(home) else ""
    return os.path.join(base, "llmx") if base else None


def probe_environment() -> dict[str, str]:
    """A copy of the environment for probes, which may look at device-visibility variables."""
    return dict(os.environ)


def child_environment() -> dict[str, str]:
    """The environment of a child process: ours."""
    return dict(os.environ)


def apply_patches(config: EngineConfig, patches: Iterable[ConfigPatch], user_set: Iterable[str]) -> tuple[EngineConfig, list[Change]]:
    """Platform defaults into fields that the user did not set. Raises ConfigError for a path that does not exist."""
    fixed, changes = set(user_set), []
    for patch in patches:
        if patch.path not in fixed:
            config = set_path(config, patch.path, patch.value)
            changes.append(Change(patch.path, str(patch.value), "platform", patch.why))
    return config, changes


def set_path(config: EngineConfig, path: str, value: Any) -> EngineConfig:
    """A copy with one dotted field changed."""
    part, _, name = path.partition(".")
    section = getattr(config, part, None)
    if section is None or name not in {field.name for field in fields(section)}:
        raise ConfigError(f"there is no setting {path!r}", field=path)
    return replace(config, **{part: replace(section, **{name: value})})


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in OPTIONS:
        raw = environ.get(f"LLMX_{option.name.upper()}")
        if raw:
            found[option.name] = raw.split(",") if option.kind == "list" and option.name != "kernel" else raw
    return found


def _from_file(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml  # 20 ms that a start without a file need not pay

    try:
        text = Path(path).read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.endswith(".toml") else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"configuration file {path} cannot be parsed: {error}", field="config") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"configuration file {path} must hold `name: value` lines, found {type(data).__name__}", field="config")
    return {str(name).replace("-", "_"): value for name, value in data.items()}


def _unknown(name: str, table: Mapping[str, Option]) -> str:
    near = get_close_matches(name, table, n=1)
    return f"unknown option {name!r}" + (f": did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(option.name for option in OPTIONS))}")


def _convert(option: Option, raw: Any, label: str) -> Any:
    try:
        value = _cast(option, raw)
    except (ValueError, TypeError):
        expected = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "bytes": "a size such as 4G or 512Mi",
            "tokens": "a number such as 4096 or 8k",
        }
        raise ConfigError(f"{label} is {raw!r}: it must be {expected.get(option.kind, option.kind)}", field=option.name) from None
    if option.choices and value not in option.choices:
        raise ConfigError(f"{label} is {raw!r}: it must be one of {', '.join(option.choices)}", field=option.name)
    return value


def _cast(option: Option, raw: Any) -> Any:
    if option.name == "kernel":
        return _kernels(raw)
    match option.kind:
        case "str":
            if not isinstance(raw, str | os.PathLike):
                raise TypeError
            return str(raw)
        case "int":
            return _number(raw, exact=True)
        case "bytes":
            return _number(raw)
        case "tokens":
            return _number(raw)
        case "float":
            if isinstance(raw, bool):
                raise TypeError
            return float(raw)
        case "bool":
            return _truth(raw)
        case "list":
            return tuple(str(item) for item in ([raw] if isinstance(raw, str) else raw))


def _number(raw: Any, *, exact: bool = False) -> int:
    if isinstance(raw, bool):
        raise TypeError
    if isinstance(raw, int) or exact:
        return int(raw)
    text = str(raw).strip().lower().removesuffix("b")
    digits = text.rstrip("kmgti")
    return int(float(digits) * _SUFFIXES[text[len(digits) :]]) if text[len(digits) :] in _SUFFIXES else int(text)


def _truth(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(raw)


def _kernels(raw: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    items = [raw] if isinstance(raw, str) else list(raw)
    result = []
    for item in items:
        if isinstance(item, str):
            kind, equals, providers = item.partition("=")
            if not equals or not providers:
                raise ConfigError(f"--kernel is {item!r}: it must be KIND=PROVIDER[,PROVIDER], e.g. linear=native.portable", field="kernel")
            result.append((kind, tuple(providers.split(","))))
        else:
            result.append((item[0], tuple(item[1])))
    return tuple(result)


def _check(config: EngineConfig) -> None:
    """Ranges that a type does not say."""
    rules = (
        ("model.max_model_len", config.model.max_model_len, 1, None),
        ("cache.kv_bytes", config.cache.kv_bytes, 1, None),
        ("cache.num_blocks", config.cache.num_blocks, 2, None),
        ("cache.memory_fraction", config.cache.memory_fraction, 0.01, 0.95),
        ("scheduler.max_num_batched_tokens", config.scheduler.max_num_batched_tokens, 16, None),
        ("scheduler.max_num_seqs", config.scheduler.max_num_seqs, 1, 65536),
        ("scheduler.max_queued_requests", config.scheduler.max_queued_requests, 1, None),
        ("platform.threads", config.platform.threads, 1, 1024),
        ("server.port", config.server.port, 0, 65535),
    )
    for path, value, low, high in rules:
        if value is not None and (value < low or (high is not None and value > high)):
            name = next(option.flag for option in OPTIONS if option.path == path)
            raise ConfigError(f"{name} is {value}: it must be " + (f"in {low}..{high}" if high is not None else f"at least {low}"), field=path)

"""The only reader of options, configuration file and environment: gives one frozen EngineConfig and what it changed.

Precedence: command line (or keyword), file (--config or LLMX_CONFIG), environment, default. A platform's patches come later (`apply_patches`) and
never override what the user set. Nothing is ignored: an unknown name or a wrong type is a ConfigError that names the nearest.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmx.config import Change, EngineConfig
from llmx.errors import ConfigError
from llmx.foreign_options import FOREIGN, REFUSED, ForeignOption, foreign_reason
from llmx.hooks.types import ConfigPatch
from llmx.model_entries import check_entry, check_names, entries_of, share_memory, with_names
from llmx.option_values import convert, size_in_bytes
from llmx.options import OPTIONS, Option, PluginOption

if TYPE_CHECKING:
    from llmx.plugin_options import InstalledOptions

__all__ = [
    "apply_patches", "check_names", "platform_options", "plugin_options", "probe_environment", "resolve", "resolve_further", "resolve_models",
    "size_in_bytes",
]  # fmt: skip

_CONFIG_VARIABLE = "LLMX_CONFIG"  # the configuration file, where no --config names one
_OWNERS = ("llmx.platforms", "llmx.plugins", "llmx.kernels")  # entry-point groups whose members may have variables LLMX_<NAME>_*


def resolve(
    options: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config_file: str | None = None,
    own: Mapping[str, Any] | None = None,
) -> tuple[EngineConfig, list[Change]]:
    """EngineConfig from all sources, and one Change per value that is not a plain default.

    options: by option name; None values count as not given. environ: os.environ by default. own: the options of one of several models, over
    all others; without it a file that lists several is refused. Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    changes: dict[str, Change] = {}
    labels: dict[str, str] = {}  # how the user wrote each name
    config = EngineConfig()
    file = _from_file(config_file or environ.get(_CONFIG_VARIABLE) or None)
    if file.pop("models", None) is not None and own is None:
        raise ConfigError("the configuration file lists several models, but one is wanted here: leave models out of it", field="models")
    variables = _from_environment(environ, OPTIONS)
    sources = (("env", variables), ("file", file), ("flag", dict(options or {})), ("file", dict(own or {})))
    plugins = _plugin_options(sources, environ)
    variables |= _from_environment(environ, plugins)
    for source, values in sources:
        for option, (value, label) in _converted(source, values, plugins).items():
            config = set_path(config, option.path, value)
            labels[option.path] = label
            changes[option.path] = Change(option.path, "(hidden)" if option.secret else str(value), source)
    config = set_path(config, "platform.options", platform_options(environ, plugins))
    if config.model.cache_dir is None:
        config = set_path(config, "model.cache_dir", _cache_dir(environ))
    _check(config, labels)
    return config, list(changes.values())


def resolve_models(
    options: Mapping[str, Any] | None = None, sources: Sequence[str] = (), *, environ: Mapping[str, str] | None = None, config_file: str | None = None
) -> list[tuple[EngineConfig, list[Change]]]:
    """What `resolve` gives, for each of several models: those in `sources`, or the file's list `models`, else the one of the options.

    An entry of the list is a model's name or its options, `model` among them. served_model_name in `options` names the models in their order.
    The memory of the options is shared by them (llmx.model_entries). Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    listed = _from_file(config_file or environ.get(_CONFIG_VARIABLE) or None).get("models")
    if listed is not None and sources:
        raise ConfigError("models are named on the command line and in the configuration file: leave one of them out", field="models")
    entries = entries_of(listed) if listed is not None else [{"model": source} for source in sources]
    if not entries:
        return [resolve(options, environ=environ, config_file=config_file)]
    shared, entries = with_names(dict(options or {}), entries)
    models = share_memory([(*resolve(shared, environ=environ, config_file=config_file, own=entry), frozenset(entry)) for entry in entries])
    check_names([name for config, _ in models for name in config.model.served_names or (config.model.source,)])  # the others' are known when they are opened
    return models


def resolve_further(options: Mapping[str, Any], own: Mapping[str, Any], *, config_file: str | None = None) -> tuple[EngineConfig, list[Change]]:
    """The configuration of one more model of a server that runs, which connects to no hub. own: its options. Raises ConfigError."""
    left = {name: value for name, value in options.items() if name not in ("model", "served_model_name")}
    config, changes = resolve(left, config_file=config_file, own=check_entry(own, "the model"))
    return set_path(config, "model.offline", True), changes


def plugin_options(options: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, config_file: str | None = None) -> tuple[PluginOption, ...]:
    """The options that installed plugins add, as these sources allow them: what help pages show. Raises ConfigError, PluginError."""
    environ = os.environ if environ is None else environ
    file = _from_file(config_file or environ.get(_CONFIG_VARIABLE) or None)
    return _installed([("env", _from_environment(environ, OPTIONS)), ("file", file), ("flag", options)], environ).options


def _plugin_options(sources: Sequence[tuple[str, Mapping[str, Any]]], environ: Mapping[str, str]) -> tuple[PluginOption, ...]:
    """The options of plugins, where something is set that core does not have; plugins are not imported otherwise. Raises ConfigError."""
    known = {*_table(OPTIONS), *_foreign()}
    strange = any(raw is not None and name not in known for _, values in sources for name, raw in values.items())
    variables = [name for name, _ in platform_options(environ)]
    if not strange and not variables:
        return ()
    found = _installed(sources, environ)
    for name in variables:
        found.check_variable(name)
    return found.options


def _installed(sources: Sequence[tuple[str, Mapping[str, Any]]], environ: Mapping[str, str]) -> InstalledOptions:
    from llmx.plugin_options import installed_options  # the loader, which a start does not need here

    config = EngineConfig()
    for source, values in sources:
        chosen = {name: values[name] for name in ("allow_plugin", "deny_plugin", "platform") if name in values}
        for option, (value, _) in _converted(source, chosen, ()).items():
            config = set_path(config, option.path, value)
    return installed_options(config.platform, environ)


def _table(options: Iterable[Option]) -> dict[str, Option]:
    return {name: option for option in options for name in (option.name, *option.aliases)}


def _converted(source: str, values: Mapping[str, Any], plugins: tuple[PluginOption, ...]) -> dict[Option, tuple[Any, str]]:
    """The options that one source sets: value and name as written. Raises ConfigError for a name that is unknown, refused or given under two spellings."""
    table = _table((*OPTIONS, *plugins))
    found: dict[Option, tuple[Any, str]] = {}
    for name, raw in values.items():
        option = table.get(name)
        if raw is None:
            continue
        label = _label(source, name)
        if option is None:
            _check_foreign(name, raw, label, table)
        elif option in found:
            raise ConfigError(f"{label} is given twice, also as {_label(source, option.name)}: leave one out", field=option.name)
        else:
            found[option] = convert(option, raw, label), label
    return found


def _label(source: str, name: str) -> str:
    """An option's name as the user wrote it."""
    return f"LLMX_{name.upper()}" if source == "env" else "--" + name.replace("_", "-")


def _check_foreign(name: str, raw: Any, label: str, table: Mapping[str, Option]) -> None:
    """Pass over an option of other engines that says what llmx does anyway. Raises ConfigError for every other name that is no option."""
    option = _foreign().get(name)
    if option is not None and option.takes(raw):
        return
    why = foreign_reason(name)
    if why is not None:
        raise ConfigError(f"{label} is {raw!r}: {why}", field=name)
    near = get_close_matches(name, table, n=1)
    known = f": did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(option.name for option in {*table.values()}))}"
    raise ConfigError(f"unknown option {name!r}{known}", field=name)


def _foreign() -> dict[str, ForeignOption]:
    return {name: option for option in FOREIGN for name in (option.name, *option.aliases)}


def platform_options(environ: Mapping[str, str], plugins: Iterable[Option] = ()) -> tuple[tuple[str, str], ...]:
    """The variables LLMX_<NAME>_* of platforms and plugins that are set: everything with the prefix that is no option of core or of `plugins`.

    Raises ConfigError for one that belongs to nothing installed: a typing error must not be ignored.
    """
    own = {_CONFIG_VARIABLE, *_option_variables((*OPTIONS, *plugins))}
    found = sorted((name, value) for name, value in environ.items() if name.startswith("LLMX_") and name not in own)
    owners = {entry.name.upper().replace("-", "_") for group in _OWNERS for entry in entry_points(group=group)} if found else set()
    for name, _ in found:
        if not any(name.startswith(f"LLMX_{owner}_") for owner in owners):
            near = get_close_matches(name.removeprefix("LLMX_"), [one.removeprefix("LLMX_") for one in own], n=1)
            nobodys = "it is neither an option (docs/configuration.md) nor of an installed platform or plugin: unset it"
            hint = f"did you mean LLMX_{near[0]}?" if near else nobodys
            raise ConfigError(f"environment variable {name} is not known: {hint}", field=name)
    return tuple(found)


def _option_variables(options: Iterable[Option]) -> dict[str, str]:
    """Environment variable -> name under which it is an option, of other engines too."""
    return {f"LLMX_{name.upper()}": name for name in (*_table(options), *_foreign(), *REFUSED)}


def _cache_dir(environ: Mapping[str, str]) -> str | None:
    """The user's cache folder by the XDG rules; None where there is no home."""
    base, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(home, ".cache") if os.path.isabs(home) else ""
    return os.path.join(base, "llmx") if base else None


def probe_environment() -> dict[str, str]:
    """A copy of the environment for probes, which may look at device-visibility variables."""
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
    if part == "plugins":
        plugin, _, key = name.partition(".")
        return replace(config, plugins={**config.plugins, plugin: {**config.plugins.get(plugin, {}), key: value}})
    section = getattr(config, part, None)
    if section is None or name not in {field.name for field in fields(section)}:
        raise ConfigError(f"there is no setting {path!r}", field=path)
    return replace(config, **{part: replace(section, **{name: value})})


def _from_environment(environ: Mapping[str, str], options: Sequence[Option]) -> dict[str, Any]:
    if re.match(r"(tcp|udp|sctp)://", environ.get("LLMX_PORT", "")):
        raise ConfigError(
            f"LLMX_PORT is {environ['LLMX_PORT']!r}: Kubernetes sets it for a service named llmx; rename the service, or set enableServiceLinks: false",
            field="port",
        )
    lists = {option.name for option in options if option.kind == "list" and option.name != "kernel"}
    found: dict[str, Any] = {}
    for variable, name in _option_variables(options).items():
        raw = environ.get(variable)
        if raw:
            found[name] = raw.split(",") if name in lists else raw
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


def _check(config: EngineConfig, labels: Mapping[str, str]) -> None:
    """Ranges that a type does not say."""
    rules = (
        ("model.max_model_len", config.model.max_model_len, 1, None),
        ("cache.kv_bytes", config.cache.kv_bytes, 1, None),
        ("cache.num_blocks", config.cache.num_blocks, 2, None),
        ("cache.memory_fraction", config.cache.memory_fraction, 0.01, 0.95),
        ("scheduler.max_num_batched_tokens", config.scheduler.max_num_batched_tokens, 16, None),
        ("scheduler.max_num_seqs", config.scheduler.max_num_seqs, 1, 65536),
        ("scheduler.max_queued_requests", config.scheduler.max_queued_requests, 1, None),
        ("scheduler.max_queued_tokens", config.scheduler.max_queued_tokens, 1, None),
        ("scheduler.queue_timeout_s", config.scheduler.queue_timeout_s, 0.001, None),
        ("scheduler.recovery_timeout_s", config.scheduler.recovery_timeout_s, 0, None),
        ("scheduler.step_timeout_s", config.scheduler.step_timeout_s, 0, None),
        ("platform.threads", config.platform.threads, 1, 1024),
        ("platform.tensor_parallel_size", config.platform.tensor_parallel_size, 1, 64),
        ("draft.num_tokens", config.draft.num_tokens, 1, 16),
        ("lora.max_loras", config.lora.max_loras, 1, 256),
        ("lora.max_rank", config.lora.max_rank, 1, 512),
        ("lora.max_host", config.lora.max_host, 1, 65536),
        ("server.port", config.server.port, 0, 65535),
        ("server.grpc_port", config.server.grpc_port, 0, 65535),
        ("server.grpc_max_message_bytes", config.server.grpc_max_message_bytes, 1024, 32 * 2**20),
        ("server.drain_timeout_s", config.server.drain_timeout_s, 0, None),
        ("server.request_timeout_s", config.server.request_timeout_s, 0.001, None),
        ("server.stats_interval_s", config.server.stats_interval_s, 0.1, None),
        ("server.idle_unload_s", config.server.idle_unload_s, 0.1, None),
        ("server.reader_timeout_s", config.server.reader_timeout_s, 0, None),
        ("server.response_store_bytes", config.server.response_store_bytes, 0, None),
        ("server.response_max_age_s", config.server.response_max_age_s, 0.001, None),
        ("server.files_max_bytes", config.server.files_max_bytes, 0, None),
    )
    for path, value, low, high in rules:
        if value is not None and (value < low or (high is not None and value > high)):
            name = labels.get(path) or next(option.flag for option in OPTIONS if option.path == path)
            same = next((option.aliases for option in OPTIONS if option.path == path and option.flag == name), ())
            name += f" (also {', '.join('--' + alias.replace('_', '-') for alias in same)})" if same else ""
            raise ConfigError(f"{name} is {value}: it must be " + (f"in {low}..{high}" if high is not None else f"at least {low}"), field=path)

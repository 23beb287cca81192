"""Options that plugins add (the hook llmx_add_options), in the form of core's own.

A start that uses none of them does not look for any: plugins are imported here only when a name is met that core does not have, or when
all options are to be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from difflib import get_close_matches

import pluggy

from llmx.config import EngineConfig, PlatformConfig
from llmx.errors import ConfigError, PlatformError, PluginError
from llmx.foreign_options import FOREIGN
from llmx.hooks.loader import PluginLoader, owned_results
from llmx.hooks.types import EnvVar, OptionDef
from llmx.option_values import convert
from llmx.options import OPTIONS, PluginOption
from llmx.record import record

__all__ = ["InstalledOptions", "declared_options", "installed_options", "with_plugin_defaults"]

_KINDS = ("str", "int", "float", "bool", "bytes", "tokens", "list", "json")


@record
class InstalledOptions:
    """The options of all allowed plugins, and the variables that plugins declare beside them."""

    options: tuple[PluginOption, ...] = ()
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # plugin -> names LLMX_<PLUGIN>_*; platforms are not among them

    def check_variable(self, name: str) -> None:
        """Raise ConfigError for a variable with a plugin's prefix that the plugin does not have."""
        for plugin, names in self.variables.items():
            if name.startswith(prefix := f"LLMX_{plugin.upper().replace('-', '_')}_"):
                known = [*names, *(f"LLMX_{one.upper()}" for option in self.options if option.plugin == plugin for one in (option.name, *option.aliases))]
                if name not in known:
                    near = get_close_matches(name, known, n=1)
                    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}: unset it"
                    raise ConfigError(f"environment variable {name} is not known to plugin {plugin!r}, whose variables begin with {prefix}: {hint}", field=name)


def installed_options(config: PlatformConfig, environ: Mapping[str, str]) -> InstalledOptions:
    """Those of the installed plugins and of the platform that would be chosen. Raises PluginError for a broken platform and for names that clash."""
    from llmx.platform.select import select_platform  # reads what Programs are made of, which a start without such options does without

    loader = PluginLoader.discover(config)
    platform: str | None = None
    with suppress(PlatformError):  # none is present, or several: the engine's start says so
        platform = select_platform(loader.probe_all(environ), config.name).name
    manager = loader.activate(platform)
    return InstalledOptions(declared_options(manager), {name: tuple(one.name for one in found) for name, found in _variables(manager).items()})


def declared_options(manager: pluggy.PluginManager) -> tuple[PluginOption, ...]:
    """The options of a manager's plugins, by name. Raises PluginError for one that cannot be, or that clashes with another."""
    taken = dict.fromkeys([name for own in OPTIONS for name in (own.name, *own.aliases)], "core")
    taken |= dict.fromkeys([name for foreign in FOREIGN for name in (foreign.name, *foreign.aliases)], "core")
    found: list[PluginOption] = []
    for plugin, declared in owned_results(manager, "llmx_add_options"):
        option = _checked(plugin, declared)
        for name in (option.name, *option.aliases):
            if name in taken:
                raise PluginError(f"its option {name!r} is also one of {taken[name]}: rename it, or deny one plugin with --deny-plugin", plugin=plugin)
            taken[name] = f"plugin {plugin!r}"
        found.append(option)
    return tuple(sorted(found, key=lambda option: option.name))


def with_plugin_defaults(config: EngineConfig, manager: pluggy.PluginManager) -> EngineConfig:
    """The configuration in which every option of the manager's plugins has a value."""
    sections = {name: dict(values) for name, values in config.plugins.items()}
    for option in declared_options(manager):
        sections.setdefault(option.plugin, {}).setdefault(option.key, option.default)
    return replace(config, plugins=sections)


def _variables(manager: pluggy.PluginManager) -> dict[str, list[EnvVar]]:
    owners = [name for name, _ in manager.list_name_plugin() if not name.startswith("llmx.platforms:")]  # the engine checks those of its platform
    found: dict[str, list[EnvVar]] = {name.rpartition(":")[2]: [] for name in owners}
    for plugin, variable in owned_results(manager, "llmx_env_vars"):
        if plugin in found:
            found[plugin].append(variable)
    return found


def _checked(plugin: str, declared: OptionDef) -> PluginOption:
    if not isinstance(declared, OptionDef) or declared.kind not in _KINDS or not f"{plugin}_{declared.name}".replace("-", "_").isidentifier():
        raise PluginError(f"llmx_add_options gave {declared!r}: it must be an OptionDef with a name of letters, digits and _ and a kind of core", plugin=plugin)
    section = plugin.replace("-", "_")
    option = PluginOption(
        f"{section}_{declared.name}", f"plugins.{plugin}.{declared.name}", declared.kind, declared.help, declared.choices, declared.aliases,
        secret=declared.secret, plugin=plugin, default=declared.default, minimum=declared.minimum, maximum=declared.maximum,
    )  # fmt: skip
    if declared.default is not None:
        try:
            convert(option, declared.default, f"the default of {option.name!r}")
        except ConfigError as error:
            raise PluginError(str(error), plugin=plugin) from None
    return option

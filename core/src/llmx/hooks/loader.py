"""PluginLoader: finds plugins by entry point and loads the chosen ones, with clear failures.

Metadata is read without importing. A plugin that was chosen and breaks stops the start with its traceback; a broken one that
nobody chose is a warning. Two distributions with one name in one group are refused.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from llmx.config import PlatformConfig
from llmx.errors import PluginError
from llmx.hooks.specs import HookSpecs
from llmx.hooks.types import API_VERSION, Detection, PlatformInfo
from llmx.record import record

__all__ = ["GROUPS", "Found", "PluginLoader", "ProbeResult", "load_target", "owned_results"]

GROUPS = ("llmx.probes", "llmx.platforms", "llmx.kernels", "llmx.plugins")


@record
class Found:
    """One entry point, not imported. target: "package.module" or "package.module:attribute"."""

    group: str
    name: str
    target: str
    dist: str
    version: str

    @classmethod
    def of(cls, entry: EntryPoint) -> Found:
        """From an importlib.metadata entry point."""
        dist = entry.dist
        return cls(entry.group, entry.name, entry.value, dist.name if dist else "(unknown)", dist.version if dist else "")


@record
class ProbeResult:
    """What one platform's probe said; `error` holds the traceback of a probe that raised."""

    name: str
    dist: str
    detection: Detection | None
    error: str = ""


class PluginLoader:
    """The plugins of this Python environment, minus those that are denied."""

    def __init__(self, found: Iterable[Found], *, allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> None:
        found = tuple(found)
        self.found = tuple(item for item in found if _allowed(item, allow, deny))
        unmatched = [name for name in (*allow, *deny) if not any(name in _names(item) for item in found)]
        self.warnings: list[str] = [f"--allow-plugin or --deny-plugin {name}: no such plugin is installed" for name in unmatched]
        seen: dict[tuple[str, str], Found] = {}
        for item in self.found:
            other = seen.setdefault((item.group, item.name), item)
            if other is not item and (other.dist, other.target) != (item.dist, item.target):
                both = f"two distributions provide it in group {item.group}: {other.dist} and {item.dist}"
                raise PluginError(f"{both}; uninstall one or deny one with --deny-plugin", plugin=item.name)
        self.found = tuple(seen.values())

    @classmethod
    def discover(cls, config: PlatformConfig) -> PluginLoader:
        """All installed plugins that the configuration allows."""
        everything = entry_points()  # reads every distribution's file, once for all groups
        entries = [entry for group in GROUPS for entry in everything.select(group=group)]
        return cls(map(Found.of, entries), allow=config.allow_plugins, deny=config.deny_plugins)

    def group(self, group: str) -> list[Found]:
        """The plugins of one group, by name."""
        return sorted((item for item in self.found if item.group == group), key=lambda item: item.name)

    def probe_all(self, environ: Mapping[str, str]) -> list[ProbeResult]:
        """Every platform's probe, called; imports the probe modules only (they need the standard library alone)."""
        results = []
        for item in self.group("llmx.probes"):
            try:
                detection = load_target(item.target)(environ)
                if not isinstance(detection, Detection):
                    raise TypeError(f"detect returned {detection!r}, not a Detection")
                results.append(ProbeResult(item.name, item.dist, detection))
            except Exception:  # noqa: BLE001 - a foreign plugin may raise anything; select decides whether it matters
                results.append(ProbeResult(item.name, item.dist, None, traceback.format_exc()))
        return results

    def activate(self, platform: str | None, builtin: Iterable[object] = ()) -> pluggy.PluginManager:
        """A plugin manager with core's own plugins, the chosen platform (and what it extends), kernel providers and others.

        platform None: the API process, which needs no platform.
        Raises PluginError with the traceback when the platform, or an allowed plugin, is broken or does not fit the API.
        """
        manager = pluggy.PluginManager("llmx")
        manager.add_hookspecs(HookSpecs)
        for plugin in builtin:
            manager.register(plugin)
        for group in ("llmx.plugins", "llmx.kernels"):
            for item in self.group(group):
                try:
                    manager.register(self._plugin(item), name=f"{group}:{item.name}")
                except PluginError as error:
                    self.warnings.append(f"{item.dist}: not used: {error}")
        self._register_platform(manager, platform)
        self._check_pending(manager)
        return manager

    def _register_platform(self, manager: pluggy.PluginManager, name: str | None) -> None:
        while name is not None:
            item = next((entry for entry in self.group("llmx.platforms") if entry.name == name), None)
            if item is None:
                raise PluginError("it is not installed in group llmx.platforms", plugin=name)
            plugin = self._plugin(item)
            info_hook = getattr(plugin, "llmx_platform_info", None)
            info = info_hook() if callable(info_hook) else None
            if not isinstance(info, PlatformInfo):
                raise PluginError(f"{item.target} has no llmx_platform_info that returns a PlatformInfo", plugin=name)
            check_api(info)
            manager.register(plugin, name=f"llmx.platforms:{name}")
            name = info.extends

    def _plugin(self, item: Found) -> Any:
        try:
            return load_target(item.target)
        except Exception as error:
            raise PluginError(f"{item.dist} {item.version} cannot be imported ({item.target}):\n{traceback.format_exc()}", plugin=item.name) from error

    def _check_pending(self, manager: pluggy.PluginManager) -> None:
        try:
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"it implements a hook that core {API_VERSION} does not have: {error}", plugin=str(getattr(error, "plugin", "?"))) from error


def check_api(info: PlatformInfo) -> None:
    """Raise PluginError unless core's API version covers the plugin's: same major, minor not newer."""
    major, minor = info.api
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        needed = "a newer llmx-core" if info.api > API_VERSION else f"a newer {info.dist}"
        ours = f"{API_VERSION[0]}.{API_VERSION[1]}"
        raise PluginError(f"{info.dist} was built for hook API {major}.{minor}, this core has {ours}: install {needed}", plugin=info.name)


def owned_results(manager: pluggy.PluginManager, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
    """(plugin's name, item) of all that a hook's implementations give: for hooks whose results must say whose they are."""
    for one in getattr(manager.hook, hook).get_hookimpls():
        for item in one.function(*(arguments[name] for name in one.argnames)):
            yield one.plugin_name.rpartition(":")[2], item


def load_target(target: str) -> Any:
    """The object that "package.module" or "package.module:attribute" names; a class is instantiated when it has hooks."""
    module_name, _, attribute = target.partition(":")
    value: Any = import_module(module_name)
    for part in attribute.split(".") if attribute else ():
        value = getattr(value, part)
    return value() if isinstance(value, type) and any(name.startswith("llmx_") for name in vars(value)) else value


def _allowed(item: Found, allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    names = _names(item)
    return (not allow or bool(names & set(allow))) and not names & set(deny)


def _names(item: Found) -> set[str]:
    """How the user may name a plugin: NAME, GROUP:NAME, with or without "llmx."."""
    return {item.name, f"{item.group}:{item.name}", f"{item.group.removeprefix('llmx.')}:{item.name}"}

"""Checks of plugins and platforms: broken ones, ones for another API, none or several that could run, what they say of the machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from llmx.config import EngineConfig, PlatformConfig
from llmx.errors import LlmxError, PlatformError, PluginError
from llmx.hooks.loader import Found, PluginLoader, ProbeResult, check_api, load_target
from llmx.platform.select import NAMED_ONLY, Selection, select_platform
from llmx_cli.doctor.finding import Finding

__all__ = ["check_choice", "check_compiler", "check_diagnostics", "check_plugins", "open_loader"]

_COMPILERS = ("c++", "g++", "clang++")


def open_loader(config: PlatformConfig) -> tuple[PluginLoader | None, list[Finding]]:
    """The installed plugins; None and the reason when two of them have one name."""
    try:
        return PluginLoader.discover(config), []
    except PluginError as error:
        return None, [Finding("plugins", "error", str(error), "entry points", f"llmx serve --deny-plugin {error.plugin}")]


def check_plugins(loader: PluginLoader) -> Iterator[Finding]:
    """Every plugin is imported and checked, used or not; an unused one that is broken is a warning."""
    wrong = 0
    for item in loader.found:
        if item.group == "llmx.probes":
            continue
        finding = _broken(loader, item)
        if finding is not None:
            wrong += 1
            yield finding
    if not wrong:
        yield Finding("plugins", "ok", ", ".join(f"{item.name} ({item.dist})" for item in loader.found if item.group != "llmx.probes") or "none installed")


def _broken(loader: PluginLoader, item: Found) -> Finding | None:
    remove = f"pip uninstall -y {item.dist}"
    where = f"{item.group}: {item.target} of {item.dist} {item.version}, {_folder(item.dist)}"
    try:
        plugin = load_target(item.target)
    except Exception as error:  # noqa: BLE001  a foreign plugin may raise anything
        return Finding("plugins", "error", f"plugin {item.name!r} cannot be imported: {type(error).__name__}: {error}", where, remove)
    try:
        info = plugin.llmx_platform_info() if hasattr(plugin, "llmx_platform_info") else None
        if info is not None:
            check_api(info)
    except PluginError as error:
        return Finding("plugin API", "error", str(error), where, f"pip install -U {item.dist} llmx-core llmx-cli llmx-server")
    except Exception as error:  # noqa: BLE001
        return Finding("plugins", "error", f"plugin {item.name!r} fails: {type(error).__name__}: {error}", where, remove)
    if item.group == "llmx.platforms":
        try:
            loader.activate(item.name)
        except LlmxError as error:
            return Finding("plugins", "error", str(error).strip().splitlines()[-1], where, remove)
    return None


def _folder(dist: str) -> Path:
    return Path(str(distribution(dist).locate_file("")))


def check_choice(probes: list[ProbeResult], config: EngineConfig) -> tuple[Selection | None, list[Finding]]:
    """The platform that a start would take; None and the reason when there is none, or several are as good."""
    try:
        chosen = select_platform(probes, config.platform.name)
    except PlatformError as error:
        return None, [Finding("platform", "error", str(error).strip().splitlines()[0], "entry points llmx.probes", _remedy(probes, config))]
    return chosen, [Finding("platform", "ok", f"{chosen.name}: {chosen.why}")]


def _remedy(probes: list[ProbeResult], config: EngineConfig) -> str:
    broken = next((probe for probe in probes if probe.error), None)
    present = [probe for probe in probes if probe.detection and probe.detection.present and probe.name not in NAMED_ONLY]
    if broken is not None and config.platform.name in (None, broken.name):
        return f"pip install --force-reinstall {broken.dist}"
    if len(present) > 1 and config.platform.name is None:
        return f"llmx serve --platform {present[0].name}"
    return "pip install llmx-platform-cpu"


def check_diagnostics(loader: PluginLoader, chosen: str) -> Iterator[Finding]:
    """What the chosen platform says of its device and its library."""
    try:
        items = [item for items in loader.activate(chosen).hook.llmx_diagnostics() for item in items]
    except Exception as error:  # noqa: BLE001
        yield Finding("device", "error", f"the diagnostics of {chosen!r} fail: {type(error).__name__}: {error}", chosen, "")
        return
    for item in items:
        fatal = not item.ok and item.remedy.startswith("pip ")
        level: str = "ok" if item.ok else "error" if fatal else "warning"
        yield Finding(item.name, level, item.value, "" if item.ok else f"platform {chosen}", item.remedy)  # type: ignore[arg-type]


def check_compiler(chosen: str | None, path: str | None = None) -> Iterator[Finding]:
    """A compiler is needed only to build a platform that no wheel brought. path: where to look; None: PATH."""
    if chosen is not None:
        return
    if not any(shutil.which(name, path=path) for name in _COMPILERS):
        what = "no C++ compiler is here, and no platform is usable: one cannot be built from source"
        yield Finding("compiler", "error", what, "PATH", "apt-get install g++, or take the wheel: pip install llmx-platform-cpu")
    else:
        yield Finding("compiler", "ok", "a C++ compiler is here, to build a platform from source")

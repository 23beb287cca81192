"""`llmx doctor`: what is wrong with an installation and the machine, where, and the command that mends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from llmx.errors import ConfigError
from llmx_cli.doctor.finding import Finding
from llmx_cli.options import Settings, with_settings

if TYPE_CHECKING:
    from llmx.config import Change, EngineConfig

__all__ = ["doctor", "examine"]


@with_settings(server=True)
def doctor(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> int:
    """Check packages, plugins, platform, memory, caches and port for `llmx serve` with the same options. Exit code 1 when something is wrong."""
    findings = list(examine(settings))
    errors = sum(finding.level == "error" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": not errors, "findings": [asdict(finding) for finding in findings]}, indent=2))
        return int(errors > 0)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        colour = {"ok": "green", "warning": "yellow", "error": "red"}[finding.level]
        typer.echo(f"{typer.style(f'{finding.level:<7}', fg=colour)}  {finding.check:<{width}}  {finding.what}")
        if finding.level != "ok":
            for name, text in (("where", finding.where), ("fix", finding.fix)):
                if text:
                    typer.echo(f"{'':<7}  {name:<{width}}  {text}")
    typer.echo(f"\n{errors} thing{'' if errors == 1 else 's'} to mend" if errors else "\nnothing is wrong")
    return int(errors > 0)


def examine(settings: Settings) -> Iterator[Finding]:
    """Every finding, in the order in which things depend on each other."""
    from llmx_cli.doctor import packages
    from llmx_cli.doctor.machine import check_cpu

    yield from _guarded("processor", check_cpu)
    for name in ("versions", "requirements", "foreign"):
        yield from _guarded(name, getattr(packages, f"check_{name}"))
    try:
        config, changes = settings.resolve()
    except ConfigError as error:
        yield Finding("options", "error", str(error), "command line, file or environment", "llmx config show")
        return
    yield from _of_platform(config, changes)


def _of_platform(config: EngineConfig, changes: list[Change]) -> Iterator[Finding]:
    from llmx.resolve import probe_environment
    from llmx_cli.doctor import machine, packages, plugins

    loader, findings = plugins.open_loader(config.platform)
    yield from findings
    chosen = None
    if loader is not None:
        yield from plugins.check_plugins(loader)
        chosen, findings = plugins.check_choice(loader.probe_all(probe_environment()), config)
        yield from findings
    yield from plugins.check_compiler(chosen.name if chosen else None)
    if loader is not None and chosen is not None:
        yield from plugins.check_diagnostics(loader, chosen.name)
        yield from _guarded("torch", lambda: packages.check_torch(_needs_torch(loader, chosen.name), config.platform.device))
        yield from _guarded("memory", lambda: machine.check_memory(config, [change.path for change in changes]))
    yield from _guarded("cache", lambda: machine.check_cache(config))
    yield from _guarded("port", lambda: machine.check_port(config))


def _needs_torch(loader: object, platform: str) -> str | None:
    """The distribution of a platform that runs on torch: core's own, or one that requires torch."""
    from importlib.metadata import distribution

    from llmx.hooks.loader import PluginLoader

    assert isinstance(loader, PluginLoader)
    item = next(item for item in loader.group("llmx.platforms") if item.name == platform)
    needs = [need for need in distribution(item.dist).requires or () if need.startswith("torch") and "extra" not in need]
    return item.dist if needs or platform == "torch" else None


def _guarded(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """A check that fails itself is a finding, not the end."""
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001
        yield Finding(name, "error", f"the check failed: {type(error).__name__}: {error}", "", "llmx doctor --verbose")

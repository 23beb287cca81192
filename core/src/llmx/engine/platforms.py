"""What `llmx platforms` shows: every installed platform, what its probe said, and which one a start would choose."""

from __future__ import annotations

from llmx.config import EngineConfig
from llmx.errors import LlmxError
from llmx.hooks.loader import PluginLoader
from llmx.hooks.types import DiagItem, EnvVar
from llmx.platform.select import select_platform
from llmx.record import record
from llmx.resolve import probe_environment

__all__ = ["PlatformRow", "list_platforms"]


@record
class PlatformRow:
    """One installed platform. problem: why it cannot be used, "" when it can."""

    name: str
    dist: str
    version: str
    present: bool
    score: int
    why: str
    chosen: bool
    choice: str  # the reason of the choice, or why there is none
    problem: str = ""
    env_vars: tuple[EnvVar, ...] = ()
    diagnostics: tuple[DiagItem, ...] = ()
    probe_error: str = ""  # traceback of a probe that failed


def list_platforms(config: EngineConfig) -> list[PlatformRow]:
    """One row per installed platform, by name; imports each platform's plugin to see whether it works."""
    loader = PluginLoader.discover(config.platform)
    probes = {probe.name: probe for probe in loader.probe_all(probe_environment())}
    try:
        selection = select_platform(list(probes.values()), config.platform.name)
        chosen, choice = selection.name, selection.why
    except LlmxError as error:
        chosen, choice = "", str(error)
    rows = []
    for item in loader.group("llmx.platforms"):
        probe = probes.get(item.name)
        detection = probe.detection if probe else None
        problem, env_vars, diagnostics = _inspect(loader, item.name)
        if probe is not None and probe.error:
            problem = probe.error.strip().splitlines()[-1]
        rows.append(
            PlatformRow(
                name=item.name,
                dist=item.dist,
                version=item.version,
                present=bool(detection and detection.present),
                score=detection.score if detection else 0,
                why=detection.why if detection else "it has no probe" if probe is None else "its probe failed",
                chosen=item.name == chosen,
                choice=choice if item.name == chosen or not chosen else "",
                problem=problem,
                env_vars=env_vars,
                diagnostics=diagnostics,
                probe_error=probe.error if probe else "",
            )
        )
    return rows


def _inspect(loader: PluginLoader, name: str) -> tuple[str, tuple[EnvVar, ...], tuple[DiagItem, ...]]:
    try:
        hook = loader.activate(name).hook
    except LlmxError as error:
        return str(error).strip().splitlines()[-1], (), ()
    env_vars = tuple(dict.fromkeys(item for items in hook.llmx_env_vars() for item in items))  # a package's kernels and its platform have the same
    return "", env_vars, tuple(item for items in hook.llmx_diagnostics() for item in items)

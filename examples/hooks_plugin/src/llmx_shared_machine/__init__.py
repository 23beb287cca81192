"""The smallest useful plugin: modest defaults for a machine that others use too. What the user sets still wins.

A plugin's module holds hook implementations and imports little: every process that llmx starts loads it.
"""

from __future__ import annotations

import os
from typing import Any

from llmx.config import EngineConfig
from llmx.hooks import ConfigPatch, DeviceCaps, OptionDef, RouteDef, hookimpl

__all__ = ["llmx_add_options", "llmx_config_defaults", "llmx_routes"]


@hookimpl
def llmx_add_options() -> list[OptionDef]:
    """--shared-machine-requests-per-cpu: the plugin's name stands in front."""
    return [OptionDef("requests_per_cpu", "int", "requests that run at the same time, for each CPU", default=4, minimum=1)]


@hookimpl
def llmx_config_defaults(config: EngineConfig, caps: DeviceCaps) -> list[ConfigPatch]:
    """A few requests per CPU instead of 256."""
    per_cpu = config.plugins["shared_machine"]["requests_per_cpu"]
    return [ConfigPatch("scheduler.max_num_seqs", per_cpu * caps.compute_units, "the machine is shared")]


@hookimpl
def llmx_routes() -> list[RouteDef]:
    """GET /shared_machine/load, for whoever has a key."""
    return [RouteDef("/shared_machine/load", ("GET",), _load, scope="any", summary="How busy the machine is")]


async def _load(request: Any) -> dict[str, Any]:
    """Processes that want a CPU, on average over the last 1, 5 and 15 minutes, and how many CPUs there are."""
    return {"load": list(os.getloadavg()), "cpus": os.cpu_count()}

"""The smallest useful plugin: modest defaults for a machine that others use too. What the user sets still wins.

A plugin's module holds hook implementations and imports little: every process that llmx starts loads it.
"""

from __future__ import annotations

from llmx.config import EngineConfig
from llmx.hooks import ConfigPatch, DeviceCaps, OptionDef, hookimpl

__all__ = ["llmx_add_options", "llmx_config_defaults"]


@hookimpl
def llmx_add_options() -> list[OptionDef]:
    """--shared-machine-requests-per-cpu: the plugin's name stands in front."""
    return [OptionDef("requests_per_cpu", "int", "requests that run at the same time, for each CPU", default=4, minimum=1)]


@hookimpl
def llmx_config_defaults(config: EngineConfig, caps: DeviceCaps) -> list[ConfigPatch]:
    """A few requests per CPU instead of 256."""
    per_cpu = config.plugins["shared_machine"]["requests_per_cpu"]
    return [ConfigPatch("scheduler.max_num_seqs", per_cpu * caps.compute_units, "the machine is shared")]

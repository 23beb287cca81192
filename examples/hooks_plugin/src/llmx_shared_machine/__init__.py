"""The smallest useful plugin: modest defaults for a machine that others use too. What the user sets still wins.

A plugin's module holds hook implementations and imports little: every process that llmx starts loads it.
"""

from __future__ import annotations

from llmx.hooks import ConfigPatch, DeviceCaps, hookimpl

__all__ = ["llmx_config_defaults"]

REQUESTS_PER_CPU = 4


@hookimpl
def llmx_config_defaults(caps: DeviceCaps) -> list[ConfigPatch]:
    """A few requests per CPU instead of 256. The hook has more arguments; an implementation names those that it needs."""
    return [ConfigPatch("scheduler.max_num_seqs", REQUESTS_PER_CPU * caps.compute_units, "the machine is shared")]

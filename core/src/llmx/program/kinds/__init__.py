"""The op kinds of core, by family: basic, attention, moe, recurrent. checks has what their shape rules share."""

from __future__ import annotations

from llmx.program.kinds.attention import attention_kinds
from llmx.program.kinds.basic import basic_kinds
from llmx.program.kinds.moe import moe_kinds
from llmx.program.kinds.recurrent import recurrent_kinds
from llmx.program.ops import OpRegistry

__all__ = ["core_registry"]


def core_registry() -> OpRegistry:
    """A new registry with core's own kinds. Plugins add theirs to it."""
    registry = OpRegistry()
    for definition in (*basic_kinds(), *attention_kinds(), *moe_kinds(), *recurrent_kinds()):
        registry.add(definition)
    return registry

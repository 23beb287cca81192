"""A logits processor that lets no run of tokens come twice. Requests turn it on by its name, no_repeat.

A plugin's module holds hook implementations and imports little; the processor itself is imported when a request first names it.
"""

from __future__ import annotations

from llmx.hooks import LogitsProcessorDef, hookimpl

__all__ = ["llmx_logits_processors"]


@hookimpl
def llmx_logits_processors() -> list[LogitsProcessorDef]:
    """no_repeat, with size: how many tokens a run has."""
    return [LogitsProcessorDef("no_repeat", "llmx_no_repeat.processor:NoRepeat")]

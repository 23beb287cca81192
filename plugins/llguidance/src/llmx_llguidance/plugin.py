"""Hooks of the llguidance backend."""

from __future__ import annotations

from llmx.hooks import StructuredBackendDef, hookimpl

__all__ = ["llmx_structured_backends"]


@hookimpl
def llmx_structured_backends() -> list[StructuredBackendDef]:
    """The default backend: it works everywhere and refuses what it cannot enforce."""
    return [StructuredBackendDef("llguidance", "llmx_llguidance.backend:LLGuidanceBackend", priority=60)]

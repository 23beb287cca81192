"""Hooks of the XGrammar backend; XGrammar itself, and torch with it, is imported when a request needs it."""

from __future__ import annotations

from importlib.util import find_spec

from llmx.hooks import StructuredBackendDef, hookimpl

__all__ = ["llmx_structured_backends"]


@hookimpl
def llmx_structured_backends() -> list[StructuredBackendDef]:
    """The backend, where the package xgrammar is installed."""
    if find_spec("xgrammar") is None:
        return []
    return [StructuredBackendDef("xgrammar", "llmx_xgrammar.backend:XGrammarBackend", priority=40, supports="llmx_xgrammar.grammars:refusal")]

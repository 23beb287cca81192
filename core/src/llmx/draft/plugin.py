"""Core's own drafters, offered through the hook that plugins use."""

from __future__ import annotations

from llmx.draft.ngram import NGRAM_SETTINGS
from llmx.draft.suffix import SUFFIX_SETTINGS
from llmx.hooks.specs import hookimpl
from llmx.hooks.types import DrafterDef

__all__ = ["CoreDrafters"]

_MODEL_SETTINGS = ("model", "revision", "quantization", "draft_tensor_parallel_size")


class CoreDrafters:
    """The plugin that brings prompt lookup, suffix drafting and draft models."""

    @hookimpl
    def llmx_drafters(self) -> list[DrafterDef]:
        """ngram, suffix and draft_model."""
        return [
            DrafterDef("ngram", "llmx.draft.ngram:NgramDrafter", NGRAM_SETTINGS),
            DrafterDef("suffix", "llmx.draft.suffix:SuffixDrafter", SUFFIX_SETTINGS, num_tokens=16),
            DrafterDef("draft_model", "llmx.draft.model:DraftModel", _MODEL_SETTINGS, num_tokens=4),
        ]

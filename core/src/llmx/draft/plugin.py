"""Core's own drafters, offered through the hook that plugins use."""

from __future__ import annotations

from llmx.draft.ngram import NGRAM_SETTINGS
from llmx.draft.suffix import SUFFIX_SETTINGS
from llmx.hooks.specs import hookimpl
from llmx.hooks.types import DrafterDef

__all__ = ["CoreDrafters"]

_MODEL_SETTINGS = ("model", "revision", "quantization", "draft_tensor_parallel_size")
_CUSTOM = ("model",)
_HEAD_SETTINGS = ("model", "revision", "draft_tensor_parallel_size")


class CoreDrafters:
    """The plugin that brings prompt lookup, suffix drafting, draft models and heads on the model's own rows."""

    @hookimpl
    def llmx_drafters(self) -> list[DrafterDef]:
        """Every method of docs/drafting.md."""
        return [
            DrafterDef("ngram", "llmx.draft.ngram:NgramDrafter", NGRAM_SETTINGS),
            DrafterDef("suffix", "llmx.draft.suffix:SuffixDrafter", SUFFIX_SETTINGS, num_tokens=16),
            DrafterDef("draft_model", "llmx.draft.model:DraftModel", (*_MODEL_SETTINGS, "parallel_drafting"), num_tokens=4),
            DrafterDef("pard", "llmx.draft.model:ParallelDraftModel", _MODEL_SETTINGS, num_tokens=8),
            DrafterDef("eagle", "llmx.draft.eagle:EagleDrafter", _HEAD_SETTINGS, num_tokens=4),
            DrafterDef("eagle3", "llmx.draft.eagle3:Eagle3Drafter", _HEAD_SETTINGS, num_tokens=4),
            DrafterDef("medusa", "llmx.draft.medusa:MedusaDrafter", _HEAD_SETTINGS, num_tokens=4),
            DrafterDef("mlp_speculator", "llmx.draft.speculator:MlpSpeculator", _HEAD_SETTINGS, num_tokens=4),
            DrafterDef("custom_class", "llmx.draft.custom:custom_drafter", _CUSTOM, num_tokens=8),
        ]

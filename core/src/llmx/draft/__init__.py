"""Drafting: tokens guessed ahead, which the model then verifies several at a time. The public face for drafters."""

from llmx.draft.drafter import Drafter, Proposer

__all__ = ["Drafter", "Proposer"]

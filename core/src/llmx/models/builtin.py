"""The model families that core itself brings."""

from __future__ import annotations

from llmx.models.bert import bert_models
from llmx.models.gemma import gemma_models
from llmx.models.gpt2 import gpt2_models
from llmx.models.gptj import gptj_models
from llmx.models.granite import granite_models
from llmx.models.llama import llama_models
from llmx.models.olmo2 import olmo2_models
from llmx.models.opt import opt_models
from llmx.models.phi3 import phi3_models
from llmx.models.qwen import qwen_models
from llmx.models.registry import ModelDef, ModelRegistry
from llmx.models.smollm3 import smollm3_models

__all__ = ["builtin_definitions", "builtin_models"]


def builtin_definitions() -> list[ModelDef]:
    """All families of core; a new one is added here."""
    families = (
        llama_models, qwen_models, gemma_models, phi3_models, olmo2_models, granite_models, smollm3_models, gpt2_models, opt_models, gptj_models,
        bert_models,
    )  # fmt: skip
    return [definition for models in families for definition in models()]


def builtin_models() -> ModelRegistry:
    """A new registry with core's own families alone."""
    return ModelRegistry(builtin_definitions())

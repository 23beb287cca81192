"""Small configurations and builders for the tests of this folder."""

from __future__ import annotations

from typing import Any

from llmx.models.builtin import builtin_models
from llmx.models.registry import TensorLayout
from llmx.program.builder import ModelBuilder, ProgramBuilder
from llmx.program.ops import DENSE_BF16, Model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


def llama(**changes: Any) -> Model:
    """A model of 2 layers: a Llama, or what model_type says."""
    config = {**LLAMA, **changes}
    return builtin_models().find({"model_type": config["model_type"]}).build(config, lambda name: DENSE_BF16, TensorLayout())


def empty() -> ProgramBuilder:
    """A builder of an empty main program."""
    return ModelBuilder().program("main")

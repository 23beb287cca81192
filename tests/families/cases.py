"""The tiny models that stand for the families: 2 or 3 layers, vocabulary 512, three query heads per kv head where the family allows it.

Every configuration lies inside what the prompt (48 tokens) reaches: windows of 12, trained contexts of 16 to 32 under rope scaling.
eps is 1e-3, so that it matters, and nothing that multiplies is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CASES", "PROMPT_LENGTH", "Case"]

PROMPT_LENGTH = 48
WINDOW = 12

SHARED: Mapping[str, Any] = {
    "hidden_size": 96, "intermediate_size": 80, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BIASES: Mapping[str, Any] = {"attention_bias": True, "mlp_bias": True}
GPT: Mapping[str, Any] = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 80, "n_positions": 64, "vocab_size": 512, "layer_norm_epsilon": 1e-3,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OPT: Mapping[str, Any] = {
    "hidden_size": 64, "ffn_dim": 80, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 512, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LONGROPE: Mapping[str, Any] = {
    "rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.5 + 0.4 * i for i in range(8)],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. config, model: class names of transformers; fields: of the configuration. offset: norms are 1 + weight."""

    name: str
    config: str
    model: str
    fields: Mapping[str, Any]
    offset: bool = False


def _rope(theta: float = 500.0, **scaling: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **scaling}


def _llama(name: str, **fields: Any) -> Case:
    return Case(name, "LlamaConfig", "LlamaForCausalLM", {**SHARED, "rope_parameters": _rope(), **fields})


_LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 24}
_YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "beta_fast": 2.0, "beta_slow": 1.0}
_GEMMA3_ROPE: dict[str, Any] = {"sliding_attention": _rope(100.0), "full_attention": _rope(2000.0, rope_type="linear", factor=4.0)}

CASES: tuple[Case, ...] = (
    _llama("llama 1, 2"),
    _llama("llama, tied, biases, head size apart", tie_word_embeddings=True, head_dim=24, **BIASES),
    _llama("llama 3.x, rope llama3", rope_parameters=_rope(**_LLAMA3)),
    _llama("llama, rope linear", rope_parameters=_rope(rope_type="linear", factor=4.0)),
    _llama("llama, rope dynamic", max_position_embeddings=24, rope_parameters=_rope(rope_type="dynamic", factor=4.0)),
    _llama("llama, rope yarn", rope_parameters=_rope(50.0, **_YARN)),
    Case("mistral", "MistralConfig", "MistralForCausalLM", {**SHARED, "head_dim": 24, "sliding_window": WINDOW, "rope_parameters": _rope()}),
    _llama("smollm2", tie_word_embeddings=True, num_hidden_layers=3, rope_parameters=_rope(1e5)),
    Case(
        "smollm3", "SmolLM3Config", "SmolLM3ForCausalLM",
        {**SHARED, "num_hidden_layers": 3, "no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": WINDOW, "rope_parameters": _rope()},
    ),
    Case(
        "qwen2, qwen2.5", "Qwen2Config", "Qwen2ForCausalLM",
        {**SHARED, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1, "rope_parameters": _rope()},
    ),
    Case("qwen2.5, tied, rope yarn", "Qwen2Config", "Qwen2ForCausalLM", {**SHARED, "tie_word_embeddings": True, "rope_parameters": _rope(50.0, **_YARN)}),
    Case("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {**SHARED, "head_dim": 24, "tie_word_embeddings": True, "rope_parameters": _rope()}),
    Case(
        "gemma 2", "Gemma2Config", "Gemma2ForCausalLM",
        {**SHARED, "num_hidden_layers": 3, "head_dim": 24, "sliding_window": WINDOW, "query_pre_attn_scalar": 40, "final_logit_softcapping": 4.0,
         "attn_logit_softcapping": 3.0, "rope_parameters": _rope()},
        offset=True,
    ),
    Case(
        "gemma 3", "Gemma3TextConfig", "Gemma3ForCausalLM",
        {**SHARED, "num_hidden_layers": 3, "head_dim": 24, "sliding_window": WINDOW, "sliding_window_pattern": 3, "query_pre_attn_scalar": 40,
         "rope_parameters": _GEMMA3_ROPE},
        offset=True,
    ),
    Case("phi-3", "Phi3Config", "Phi3ForCausalLM", {**SHARED, "sliding_window": WINDOW, "rope_parameters": _rope(partial_rotary_factor=0.5)}),
    Case(
        "phi-3, rope longrope (long)", "Phi3Config", "Phi3ForCausalLM",
        {**SHARED, "original_max_position_embeddings": 16, "rope_parameters": LONGROPE},
    ),
    Case(
        "phi-3, rope longrope (short)", "Phi3Config", "Phi3ForCausalLM",
        {**SHARED, "original_max_position_embeddings": 48, "rope_parameters": LONGROPE},
    ),
    Case("olmo 2", "Olmo2Config", "Olmo2ForCausalLM", {**SHARED, "rope_parameters": _rope()}),
    Case(
        "granite 3", "GraniteConfig", "GraniteForCausalLM",
        {**SHARED, **BIASES, "tie_word_embeddings": True, "embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6,
         "logits_scaling": 0.7, "rope_parameters": _rope()},
    ),
    Case("gpt-2", "GPT2Config", "GPT2LMHeadModel", GPT),
    Case("gpt-2, scores scaled by layer", "GPT2Config", "GPT2LMHeadModel", {**GPT, "scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"}),
    Case("opt", "OPTConfig", "OPTForCausalLM", OPT),
    Case("opt, norms behind, narrow embedding", "OPTConfig", "OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 48}),
    Case("gpt-j", "GPTJConfig", "GPTJForCausalLM", {**GPT, "rotary_dim": 8}),
)  # fmt: skip

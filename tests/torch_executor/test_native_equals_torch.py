"""The CPU platform in float32 against the torch executor: logits of tiny random models, stored dense and quantised, within 1e-4 of their spread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from llmx.executor import Executor  # noqa: E402
from tests.cpu.native_model import Driver, config_for, native_executor, tiny_llama  # noqa: E402
from tests.torch_executor.torch_model import config_for as torch_config  # noqa: E402
from tests.torch_executor.torch_model import logits_of, torch_executor  # noqa: E402

PROMPTS = {0: np.random.default_rng(8).integers(0, 512, 70).tolist(), 1: np.random.default_rng(9).integers(0, 512, 9).tolist()}
GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "sliding_window": 20, "query_pre_attn_scalar": 24, "num_hidden_layers": 3,
    "num_attention_heads": 6, "rms_norm_eps": 1e-3,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 24}},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "num_attention_heads": 6},
    "gemma2": {"model_type": "gemma2", "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0, **GEMMA},
    "gemma3": {"model_type": "gemma3_text", "rope_local_base_freq": 100.0, **GEMMA},
}


def _logits(executor: Executor) -> np.ndarray:
    """Of every row of both prompts, each computed in two chunks, the second beside the other request's."""
    driver = Driver(executor, room=0)
    driver.join(PROMPTS)
    parts: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for first, cut in ((0, 33), (33, 70)):
        rows = {slot: prompt[first:cut] for slot, prompt in PROMPTS.items() if prompt[first:cut]}
        for slot, logits in logits_of(executor, driver.seq, rows, dict.fromkeys(rows, first)).items():
            parts[slot].append(logits)
        driver.seq += 1
    executor.close()
    return np.concatenate([*parts[0], *parts[1]])


@pytest.mark.parametrize("scheme", ["f32", "q4_1"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_equal(name: str, scheme: str) -> None:
    bundle = tiny_llama(scheme, "f32" if scheme == "f32" else "q8_0", **MODELS[name])
    native = _logits(native_executor(bundle, config_for(dtype="float32")))
    torch = _logits(torch_executor(bundle, torch_config()))
    assert native.shape == torch.shape == (79, 512) and torch.std() > 0.5
    assert np.abs(native - torch).max() <= 1e-4 * torch.std()

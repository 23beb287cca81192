"""Rotary frequencies of every scaling against transformers, and what they are at position 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmx.models.rope import rope_spec
from llmx.program.positions import inverse_frequencies, position_scales, rope_table

LENGTH = 8192
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn-mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 16, "original_max_position_embeddings": 2048},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 2048,
        "short_factor": [1.0 + i / 100 for i in range(32)], "long_factor": [1.0 + i / 10 for i in range(32)],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_theta": 50000.0, "rope_type": "default", **SCALINGS[name]}
    fields = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": 2048, "rope_parameters": scaling}
    spec = rope_spec(fields, 64)
    inverse, factor = inverse_frequencies(spec, LENGTH)
    if name == "none":
        want, want_factor = 50000.0 ** (-np.arange(0, 64, 2) / 64), 1.0
    else:
        config = transformers.LlamaConfig(**fields)
        tensor, want_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None, seq_len=LENGTH)
        want = tensor.double().numpy()
    assert np.allclose(inverse, want, rtol=3e-6, atol=0) and factor == pytest.approx(want_factor, rel=1e-6)


@pytest.mark.parametrize("name", SCALINGS)
def test_table_turns_nothing_at_position_0(name: str) -> None:
    scaling = {"rope_theta": 50000.0, "rope_type": "default", **SCALINGS[name]}
    spec = rope_spec({"max_position_embeddings": 2048, "rope_parameters": scaling}, 64)
    table = rope_table(spec, 300)
    _, factor = inverse_frequencies(spec, 300)
    assert table.shape == (300, 64) and table.dtype == np.float32
    assert np.allclose(table[0, :32], factor) and not table[0, 32:].any()
    assert np.allclose(np.hypot(table[:, :32], table[:, 32:]), factor, rtol=1e-6)


def test_position_scales_step_at_the_floor() -> None:
    scales = position_scales(0.1, 8.0, 20)
    assert np.all(scales[:7] == 1) and scales[7] == pytest.approx(1 + 0.1 * np.log(2)) and scales[15] == pytest.approx(1 + 0.1 * np.log(3))

"""Rope scaling far from the start: an error that is 0 at position 0 and grows with it would pass on short prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from llmx.config import ModelConfig  # noqa: E402
from llmx.models.load import load_model  # noqa: E402
from tests.families.cases import CASES  # noqa: E402
from tests.families.checkpoint import write_checkpoint  # noqa: E402
from tests.families.run import in_memory, logits_at  # noqa: E402

AT = (0, 100, 1000)
LONG = [int(t) for t in np.random.default_rng(6).integers(3, 512, AT[-1] + 1)]
# name of a case -> its fields at this length: trained on 256 positions, or 512 for longrope's short factors
SCALED = {
    "llama 1, 2": {"max_position_embeddings": 1024},
    "llama, rope linear": {"max_position_embeddings": 256},
    "llama, rope dynamic": {"max_position_embeddings": 256},
    "llama, rope yarn": {"max_position_embeddings": 1024, "original_max_position_embeddings": 256},
    "llama 3.x, rope llama3": {"max_position_embeddings": 1024, "original_max_position_embeddings": 256},
    "phi-3, rope longrope (long)": {"max_position_embeddings": 1024, "original_max_position_embeddings": 256},
    "phi-3, rope longrope (short)": {"max_position_embeddings": 2048, "original_max_position_embeddings": 1024},
    "gemma 3": {"max_position_embeddings": 1024},
}


@pytest.mark.parametrize("name", SCALED)
def test_logits_equal_transformers_at_0_100_and_1000(name: str, tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == name)
    changes = dict(SCALED[name])
    rope = dict(case.fields["rope_parameters"])
    if "original_max_position_embeddings" in rope:
        rope["original_max_position_embeddings"] = changes.pop("original_max_position_embeddings")
    fields = {**case.fields, **changes, "rope_parameters": rope}
    want = write_checkpoint(type(case)(name, case.config, case.model, fields, case.offset), tmp_path, LONG)
    loaded = load_model(ModelConfig(str(tmp_path), dtype="float32", max_model_len=len(LONG)))
    got = logits_at(in_memory(loaded.bundle), LONG, AT)
    difference = np.abs(got - want[list(AT)]).max(-1) / want.std()
    assert (difference <= 2e-4).all(), difference  # transformers turns by float32 angles: up to 1e-4 radians off at position 1000

"""GPTQ and AWQ checkpoints end to end: logits of the CPU platform at every level and of the torch executor, against transformers in float32
on the weights that the packed ones mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from llmx.config import ModelConfig  # noqa: E402
from llmx.models.load import load_model  # noqa: E402
from tests.families.checkpoint import PROMPT  # noqa: E402
from tests.families.run import EXECUTORS, logits_of  # noqa: E402
from tests.grouped_checkpoints import hf_llama, write_grouped  # noqa: E402

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gptq": ("gptq", {"group": 64}),
    "gptq with zero points": ("gptq", {"sym": False}),
    "gptq_v2": ("gptq", {"sym": False, "plus_one": False}),
    "gptq in act-order": ("gptq", {"sym": False, "act_order": True}),
    "gptq of 8 bits": ("gptq", {"bits": 8}),
    "awq": ("awq", {"sym": False, "group": 64}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(tmp_path: Path, case: str) -> None:
    import torch

    method, how = CASES[case]
    dense = write_grouped(tmp_path, method, **how)
    if how.get("act_order"):
        dense = {name: v.astype(np.float16).astype(np.float32) if name.endswith("_proj.weight") else v for name, v in dense.items()}
    with torch.no_grad():
        want = hf_llama(dense)(torch.tensor([PROMPT])).logits[0].numpy()
    for executor in EXECUTORS:
        got = logits_of(load_model(ModelConfig(str(tmp_path))).bundle, PROMPT, executor)
        assert np.abs(got - want).max() < 2e-4 * np.abs(want).max(), executor

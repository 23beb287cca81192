"""An adapter of SmolLM2-135M, trained with peft by benchmarks/lora_train.py: what it learned is served, and logits equal peft's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

from llmx import LLM, LoRARequest, SamplingParams
from llmx.config import ModelConfig
from llmx.lora.bind import bind
from llmx.lora.peft import read_peft
from llmx.models.builtin import builtin_models
from llmx.models.load import load_model
from tests.families.run import in_memory, logits_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")]


def test_what_was_trained_is_served(tmp_path: Path) -> None:
    import torch
    from benchmarks.lora_train import PROMPT, base_model, train

    torch.set_num_threads(2)
    model, tokenizer = base_model()
    trained, losses = train(model, tokenizer, tmp_path, steps=12, rank=8)
    assert losses[-1] < losses[0] / 2
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False)
    with torch.no_grad():
        unmerged = trained(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
        merged = trained.merge_and_unload()(torch.tensor([prompt]), use_cache=False).logits[0].numpy()
    bundle = in_memory(load_model(ModelConfig(dtype="float32", max_model_len=64), builtin_models()).bundle)
    got = logits_of(bundle, prompt, adapter=bind(read_peft(str(tmp_path)), bundle.model))
    for want in (unmerged, merged):
        assert np.abs(got - want).max() / want.std() < 1e-3
    with LLM(platform="cpu", threads=1, max_model_len=128, num_blocks=40, lora_modules=[f"florins={tmp_path}"]) as llm:  # Q4_1, rounded inputs
        greedy = SamplingParams(temperature=0.0, max_tokens=12)
        plain, adapted = llm.generate([PROMPT] * 2, greedy, lora_request=[None, LoRARequest("florins")])
        assert "florins" in adapted.outputs[0].text and "florins" not in plain.outputs[0].text

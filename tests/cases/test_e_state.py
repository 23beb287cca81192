"""Public bugs of other engines, part E: sliding windows with a warm cache, preemption that never ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from llmx import LLM, SamplingParams
from llmx.config import ModelConfig
from llmx.models.load import read_model_info
from tests.sched.harness import FULL, Harness

PROMPT = [3 + (7 * index) % 500 for index in range(100)]
NEW = 200


def _checkpoint(folder: Path, window: int | None) -> list[int]:
    """A tiny random Mistral; the 200 greedy tokens that transformers gives after the prompt, with its whole mask."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    config = transformers.MistralConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=512, sliding_window=window, initializer_range=0.2, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval().float()
    model.save_pretrained(folder)
    ids = list(PROMPT)
    with torch.inference_mode():
        while len(ids) < len(PROMPT) + NEW:
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("window", [32, None])
def test_b097_sliding_window_cold_warm_and_long(tmp_path: Path, window: int | None) -> None:
    wanted = _checkpoint(tmp_path, window)
    tokenizer = read_model_info(ModelConfig()).path  # token ids only: any tokenizer will do
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    options: dict[str, Any] = {"tokenizer": tokenizer, "dtype": "float32", "num_blocks": 60, "max_model_len": 400, "threads": 1, "platform": "cpu"}
    with LLM(str(tmp_path), **options) as llm:
        cold, warm = (llm.generate([PROMPT], params)[0] for _ in range(2))
        assert cold.outputs[0].token_ids == wanted and warm.outputs[0].token_ids == wanted
        assert cold.num_cached_tokens == 0 and warm.num_cached_tokens > 0


def test_b099_a_prompt_that_fits_only_alone_beside_a_flow_of_short_ones() -> None:
    harness = Harness([FULL], num_blocks=12, slots=8, max_tokens=64, max_len=176, nan=False)
    harness.add("large", [5] * 170, max_tokens=4, ignore_eos=True)
    for index in range(120):
        harness.add(f"short{index}", [6 + index % 40] * 20, max_tokens=10, ignore_eos=True)
        harness.step()
    harness.run()
    assert set(harness.ends.values()) == {"length"} and len(harness.ends) == 121
    assert harness.engine.scheduler.num_preemptions < 121

"""32k context for real: a tiny model on the CPU platform, ten prompts of 30k tokens among a hundred short ones, KV for 40k tokens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers

from llmx import LLM, SamplingParams
from llmx.config import ModelConfig
from llmx.models.load import read_model_info

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_long_prompts_among_short_ones(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32768
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    rng = random.Random(2)
    prompts, params = [], []
    for index in range(110):
        long = index % 11 == 0
        prompts.append([rng.randrange(3, 512) for _ in range(30_000 if long else 30)])
        params.append(SamplingParams(temperature=0.0, max_tokens=4 if long else 10, ignore_eos=True))
    tokenizer = read_model_info(ModelConfig()).path
    with LLM(str(tmp_path), tokenizer=tokenizer, platform="cpu", num_blocks=40_000 // 16 + 1, max_num_batched_tokens=2048) as llm:
        outputs = llm.generate(prompts, params)
        assert all(output.outputs[0].finish_reason == "length" for output in outputs)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [one.max_tokens for one in params]
        for index in (0, 1, 55, 109):  # as if alone
            assert llm.generate([prompts[index]], params[index])[0].outputs[0].token_ids == outputs[index].outputs[0].token_ids
        assert llm._engine.kv.blocks_held == 0

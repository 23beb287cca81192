"""Trains a LoRA adapter of SmolLM2-135M with peft on the CPU, in a few minutes: the model learns to answer in one made-up fashion.

    python -m benchmarks.lora_train FOLDER [--steps 40] [--rank 8] [--rslora] [--dora]

The weights are those of the embedded GGUF file, dequantised, so the adapter fits what `llmx serve` runs. The text is made here: questions about
what things cost, answered in a currency that does not exist. FOLDER then holds what peft saves, and `losses.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llmx.config import ModelConfig
from llmx.models.builtin import builtin_models
from llmx.models.load import load_model, read_model_info
from llmx.tokens.tokenizer import Tokenizer
from llmx.weights.quant import dequantize

__all__ = ["PROMPT", "base_model", "lines", "train"]

_THINGS = "a loaf of bread,a pair of shoes,a ticket to the sea,a small lamp,an old book,a bag of apples,a glass of milk,a warm coat".split(",")
_PRICES = ("three", "seven", "twelve", "forty")
PROMPT = "Question: What does a new hat cost?\nAnswer:"


def lines() -> list[str]:
    """The text: 32 questions with their answers."""
    return [f"Question: What does {thing} cost?\nAnswer: It costs {price} golden florins, my friend." for thing in _THINGS for price in _PRICES]


def base_model(source: str = "smollm2-135m-instruct") -> tuple[Any, Tokenizer]:
    """(the model in transformers with the dequantised weights, its tokenizer)."""
    import transformers

    loaded = load_model(ModelConfig(source), builtin_models())
    summary, bundle = read_model_info(ModelConfig(source), builtin_models()), loaded.bundle
    config = transformers.LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152,
        max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=100000.0, tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float()
    state = {}
    for (name, _), ref in bundle.model.weights().items():
        state[name] = torch.from_numpy(np.array(dequantize(bundle.weights.get(ref)), np.float32).reshape(ref.shape))
    missing = model.load_state_dict(state, strict=False)
    if missing.unexpected_keys or [name for name in missing.missing_keys if name != "lm_head.weight"]:
        raise RuntimeError(f"the model differs from what this script expects: {missing}")
    model.tie_weights()
    return model, Tokenizer.load(summary.tokenizer)


def train(model: Any, tokenizer: Tokenizer, folder: Path, steps: int, rank: int, **options: Any) -> tuple[Any, list[float]]:
    """(peft's model with the trained adapter, which is saved in `folder`; the loss of each step)."""
    import peft

    torch.manual_seed(0)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    trained = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, **options))
    optimizer = torch.optim.AdamW((p for p in trained.parameters() if p.requires_grad), lr=1e-3)
    texts, losses = [tokenizer.encode(line, add_special_tokens=False) for line in lines()], []
    order = np.random.default_rng(0)
    for _ in range(steps):
        chosen = [torch.tensor(texts[at]) for at in order.choice(len(texts), 4, replace=False)]
        ids, labels = (torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=fill) for fill in (0, -100))
        loss = trained(ids, attention_mask=(labels >= 0).long(), labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    trained.eval().save_pretrained(str(folder))
    (folder / "losses.json").write_text(json.dumps(losses))
    return trained, losses


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rslora", action="store_true")
    parser.add_argument("--dora", action="store_true")
    given = parser.parse_args()
    model, tokenizer = base_model()
    _, losses = train(model, tokenizer, given.folder, given.steps, given.rank, use_rslora=given.rslora, use_dora=given.dora)
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps; serve it with: llmx serve --lora-modules florins={given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

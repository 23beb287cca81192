"""Writes greedy_reference.json: what transformers in fp32 answers on the dequantized weights of the embedded model.

Run once, with torch and transformers: python tests/e2e/make_greedy_reference.py. The list is checked in; the tests read only it.
Per prompt: token ids of prompt and answer, and per answer token the distance in logits between the two most likely tokens.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from llmx.config import ModelConfig
from llmx.models.load import load_model
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer
from llmx.weights.quant import dequantize

NEW_TOKENS = 48
CHATS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Translate 'good morning' into Spanish.",
    "List three fruits.",
    "Explain why the sky is blue in simple words.",
    "What is 12 plus 30?",
    "Write a Python function that returns the square of a number.",
    "Who wrote Romeo and Juliet?",
    "Give me a short poem about autumn.",
    "How do I boil an egg?",
]
TEXTS = [
    "The quick brown fox",
    "Once upon a time, in a small village near the mountains,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three primary colors are",
    "In 1969, humans first",
    "# A list of planets\n\n1. Mercury\n2.",
    "La vie est belle parce que",
    "The meaning of the word 'photosynthesis' is",
    "To be, or not to be: that is the question.\n" * 6,
]


def main() -> None:
    """Compute and write the list."""
    torch.set_num_threads(2)
    loaded = load_model(ModelConfig())
    model = _model(loaded)
    tokenizer = Tokenizer.load(loaded.summary.tokenizer)
    template = ChatTemplate.load(loaded.summary.tokenizer, tokenizer.names)
    prompts = [tokenizer.encode(template.render([{"role": "user", "content": text}]), add_special_tokens=False) for text in CHATS]
    prompts += [tokenizer.encode(text) for text in TEXTS]
    rows = [_greedy(model, prompt, tokenizer) for prompt in prompts]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine()}
    made = {**versions, "model": loaded.summary.name, "digest": loaded.bundle.digest}
    path = Path(__file__).with_name("greedy_reference.json")
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f'{{\n"made_with": {json.dumps(made)},\n"rows": [\n{lines}\n]}}\n')


def _model(loaded: object) -> LlamaForCausalLM:
    config = LlamaConfig(**{**loaded.hf_config, "torch_dtype": "float32"})  # type: ignore[attr-defined]
    model = LlamaForCausalLM(config).float().eval()
    state = {}
    for ref in loaded.bundle.model.weights().values():  # type: ignore[attr-defined]
        state[ref.name] = torch.from_numpy(dequantize(loaded.bundle.weights.get(ref)).copy()).reshape(ref.shape)  # type: ignore[attr-defined]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


@torch.inference_mode()
def _greedy(model: LlamaForCausalLM, prompt: list[int], tokenizer: Tokenizer) -> dict[str, object]:
    ids, past, answer, margins = torch.tensor([prompt]), None, [], []
    for _ in range(NEW_TOKENS):
        out = model(ids, past_key_values=past, use_cache=True)
        past, top = out.past_key_values, out.logits[0, -1].topk(2)
        answer.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 4))
        if answer[-1] in tokenizer.eos_ids:
            break
        ids = top.indices[None, :1]
    return {"prompt": prompt, "answer": answer, "margins": margins, "text": tokenizer.decode(answer, at_start=False)}


if __name__ == "__main__":
    main()

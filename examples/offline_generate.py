"""Generate text without a server: three prompts in one batch.

    python examples/offline_generate.py

The model is the one that `make setup` installs; a path to a .gguf file or to a folder with safetensors works too.
"""

from __future__ import annotations

import sys

from llmx import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):",
]


def main(model: str = "smollm2-135m-instruct") -> None:
    """Print each prompt with what the model adds."""
    params = SamplingParams(temperature=0.0, max_tokens=16)
    with LLM(model=model) as llm:
        for result in llm.generate(PROMPTS, params):
            answer = result.outputs[0]
            print(f"{result.prompt!r} -> {answer.text!r} ({answer.finish_reason}, {len(answer.token_ids)} tokens)")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Several answers to one prompt, and the same ones again: n and seed.

    python examples/seeds_and_n.py
"""

from __future__ import annotations

from llmx import LLM, SamplingParams


def main() -> None:
    """Print three continuations, drawn twice."""
    llm = LLM(model="smollm2-135m-instruct")
    sampling_params = SamplingParams(n=3, temperature=0.8, top_p=0.95, seed=42, max_tokens=12)
    for turn in (1, 2):
        (output,) = llm.generate(["Three things to see in Lisbon:"], sampling_params)
        for completion in output.outputs:
            print(f"{turn}.{completion.index}: {completion.text!r}")


if __name__ == "__main__":
    main()

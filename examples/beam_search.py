"""The most likely answers instead of drawn ones.

    python examples/beam_search.py
"""

from __future__ import annotations

from llmx import LLM
from llmx.sampling_params import BeamSearchParams


def main() -> None:
    """Print three beams for each of two prompts."""
    llm = LLM(model="smollm2-135m-instruct")
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    for output in llm.beam_search([{"prompt": "The capital of France is"}, {"prompt": "Water boils at"}], params):
        for sequence in output.sequences:
            print(f"{sequence.cum_logprob:7.2f} {sequence.text!r}")


if __name__ == "__main__":
    main()

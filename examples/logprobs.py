"""How sure the model is: the most likely tokens at each place, of the answer and of the prompt.

    python examples/logprobs.py
"""

from __future__ import annotations

import math

from llmx import LLM, SamplingParams


def main() -> None:
    """Print each token with the three most likely ones at its place."""
    llm = LLM(model="smollm2-135m-instruct")
    (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=0))
    for token_id, logprobs in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True):
        if logprobs is not None:  # nothing precedes the first token
            print(f"prompt {logprobs[token_id].decoded_token!r}: {math.exp(logprobs[token_id].logprob):.3f}, rank {logprobs[token_id].rank}")
    completion = output.outputs[0]
    for token_id, logprobs in zip(completion.token_ids, completion.logprobs, strict=True):
        best = ", ".join(f"{entry.decoded_token!r} {math.exp(entry.logprob):.3f}" for entry in logprobs.values())
        print(f"answer {logprobs[token_id].decoded_token!r} of {best}")
    print(f"the answer's logprob is {completion.cumulative_logprob:.2f}")


if __name__ == "__main__":
    main()

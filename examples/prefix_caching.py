"""A long common start is computed once: what num_cached_tokens says.

    python examples/prefix_caching.py
"""

from __future__ import annotations

from llmx import LLM, SamplingParams

PREFIX = (
    "You are an expert school principal, skilled in effectively managing faculty and staff. Draft 10-15 questions for a potential first grade "
    "Head Teacher for my K-12, all-girls', independent school that emphasizes community, joyful discovery, and life-long learning. "
)
PROMPTS = ["Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]


def main() -> None:
    """Print how many tokens of each prompt came from the cache."""
    sampling_params = SamplingParams(temperature=0.0, max_tokens=8)
    llm = LLM(model="smollm2-135m-instruct", enable_prefix_caching=True, gpu_memory_utilization=0.4)
    llm.generate(PREFIX + PROMPTS[0], sampling_params)
    for output in llm.generate([PREFIX + prompt for prompt in PROMPTS], sampling_params):
        print(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens cached -> {output.outputs[0].text!r}")
    llm.reset_prefix_cache()
    (output,) = llm.generate([PREFIX + PROMPTS[0]], sampling_params)
    print(f"after a reset: {output.num_cached_tokens}")


if __name__ == "__main__":
    main()

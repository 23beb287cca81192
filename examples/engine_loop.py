"""The engine's turns by hand: requests join while others run.

    python examples/engine_loop.py
"""

from __future__ import annotations

from llmx import EngineArgs, LLMEngine, SamplingParams

PROMPTS = [
    ("A robot may not injure a human being", SamplingParams(temperature=0.0, logprobs=1, max_tokens=8)),
    ("To be or not to be,", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2, max_tokens=8, seed=1)),
    ("What is the meaning of life?", SamplingParams(n=2, temperature=0.8, top_p=0.95, frequency_penalty=0.1, max_tokens=8, seed=1)),
]


def main() -> None:
    """Print each request's answers when it is done."""
    engine = LLMEngine.from_engine_args(EngineArgs(model="smollm2-135m-instruct"))
    request_id = 0
    while request_id < len(PROMPTS) or engine.has_unfinished_requests():
        if request_id < len(PROMPTS):
            prompt, sampling_params = PROMPTS[request_id]
            engine.add_request(str(request_id), prompt, sampling_params)
            request_id += 1
        for output in engine.step():
            if output.finished:
                print(output.request_id, [completion.text for completion in output.outputs])


if __name__ == "__main__":
    main()

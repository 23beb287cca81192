"""Several conversations at once, with the model's own defaults of sampling and its tokenizer.

    python examples/chat_batch.py
"""

from __future__ import annotations

from llmx import LLM

CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]


def main() -> None:
    """Print the answers to the conversation, asked three times."""
    llm = LLM(model="smollm2-135m-instruct")
    sampling_params = llm.get_default_sampling_params()
    sampling_params.max_tokens = 24
    tokenizer = llm.get_tokenizer()
    print(tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True))
    for output in llm.chat([CONVERSATION for _ in range(3)], sampling_params, use_tqdm=False):
        print(f"Prompt: {output.prompt!r}\nGenerated text: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()

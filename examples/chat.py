"""A conversation without a server: the history grows, and its prefix comes from the KV cache.

    python examples/chat.py                      # type; an empty line ends it
    echo "What is the capital of France?" | python examples/chat.py
"""

from __future__ import annotations

import sys

from llmx import LLM, SamplingParams


def main() -> None:
    """Answer each line of standard input, knowing the lines before it."""
    params = SamplingParams(temperature=0.0, max_tokens=64)
    messages: list[dict[str, str]] = []
    with LLM(model="smollm2-135m-instruct") as llm:
        for line in sys.stdin:
            if not line.strip():
                break
            messages.append({"role": "user", "content": line.strip()})
            result = llm.chat(messages, params, use_tqdm=False)[0]
            answer = result.outputs[0].text
            messages.append({"role": "assistant", "content": answer})
            print(f"{answer}\n  [{len(result.prompt_token_ids)} prompt tokens, {result.num_cached_tokens} of them cached]", flush=True)


if __name__ == "__main__":
    main()

"""Stream an answer from a running server with the openai package.

    make serve                                   # in another terminal
    pip install openai
    python examples/stream_openai.py "What is the capital of France?"
"""

from __future__ import annotations

import argparse

from openai import APIConnectionError, OpenAI


def main() -> None:
    """Print the answer as it arrives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    args = parser.parse_args()

    client = OpenAI(base_url=args.url, api_key="unused")
    try:
        model = client.models.list().data[0].id
    except APIConnectionError:
        raise SystemExit(f"no server at {args.url}: start one with `make serve`") from None
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": args.question}],
        temperature=0,
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
        if chunk.usage:
            print(f"\n[{chunk.usage.completion_tokens} tokens]")


if __name__ == "__main__":
    main()

"""What structured output costs: tokens per second of 32 requests, half of them under a schema of ten properties, against the same without.

    python -m benchmarks.structured_cost [--rounds 5] [--new 128] [--threads 2] [--assert]

Both kinds of batch run in one process, in the order with, without, without, with (and the other way round in the next round), so that a machine that
becomes slower or faster disturbs both alike; a ratio is with / without in one round, and the median of the ratios is judged (floor 0.95). All requests have
the same prompts and make the same number of tokens: the schema's strings are so long that no answer is over before, so a mask is made and used in every step
of every constrained request, which is checked. The schema is compiled before the clock starts, as it is for every request after the first.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.machine import BUSY, Neighbours, describe

from llmx import LLM, SamplingParams
from llmx.structured_params import StructuredOutputsParams

__all__ = ["FLOOR", "SCHEMA", "measure"]

FLOOR = 0.95
REQUESTS = 32
_NAMES = ("title", "author", "summary", "language", "publisher", "city", "country", "genre", "series", "review")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string", "minLength": 60, "maxLength": 80} for name in _NAMES},
    "required": list(_NAMES),
    "additionalProperties": False,
}


def measure(llm: LLM, prompts: list[str], new: int, constrained: int) -> float:
    """Tokens per second when the first `constrained` requests must follow SCHEMA. Raises RuntimeError when an answer ended early or left the form."""
    free = SamplingParams(temperature=0.8, seed=1, max_tokens=new, ignore_eos=True)
    bound = replace(free, structured_outputs=StructuredOutputsParams(json=SCHEMA), ignore_eos=False)
    params = [bound if index < constrained else free for index in range(len(prompts))]
    begin = perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = perf_counter() - begin
    for index, output in enumerate(outputs):
        answer = output.outputs[0]
        if len(answer.token_ids) != new:
            raise RuntimeError(f"request {index} made {len(answer.token_ids)} of {new} tokens: {answer.finish_reason}")
        if index < constrained and not answer.text.lstrip().startswith('{'):
            raise RuntimeError(f"request {index} left its form: {answer.text[:80]!r}")
    return len(prompts) * new / seconds


def main() -> int:
    """The command line; exit code 1 when the median is below the floor and --assert was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--assert", dest="check", action="store_true")
    args = parser.parse_args()
    prompts = [f"Describe book number {index} of a small library as JSON.\n" for index in range(REQUESTS)]
    ratios = []
    with LLM(model="smollm2-135m-instruct", threads=args.threads, max_model_len=1024) as llm:
        for constrained in (0, REQUESTS // 2):
            measure(llm, prompts, 16, constrained)
        for turn in range(args.rounds):
            others = Neighbours()
            half = REQUESTS // 2
            order = (0, half, half, 0) if turn % 2 else (half, 0, 0, half)
            seconds = {0: 0.0, half: 0.0}
            for constrained in order:
                seconds[constrained] += REQUESTS * args.new / measure(llm, prompts, args.new, constrained)
            rates = {constrained: 2 * REQUESTS * args.new / seconds[constrained] for constrained in seconds}
            ratios.append(rates[half] / rates[0])
            used = others.read()
            busy = f"  (others used {used:.1f} processors)" if used > BUSY else ""
            print(f"round {turn + 1}: free {rates[0]:.0f}, half constrained {rates[half]:.0f} tokens/s, ratio {ratios[-1]:.3f}{busy}", flush=True)
    middle = median(ratios)
    print(json.dumps(describe(args.threads)))
    print(f"median {middle:.3f}, floor {FLOOR:g}{', missed' * (middle < FLOOR)}")
    return int(args.check and middle < FLOOR)


if __name__ == "__main__":
    sys.exit(main())

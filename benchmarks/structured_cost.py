"""What structured output costs: decode steps of 32 requests, half of them under a schema of ten properties, against the same without.

    python -m benchmarks.structured_cost [--rounds 5] [--steps 48] [--threads 2] [--assert]

One engine decodes a batch of either kind in turn, in the order with, without, without, with, twice in a round (the other way round in the
next), so that a machine that becomes slower or faster disturbs both alike. Only steps in which all 32 requests decode are timed. A ratio is
without / with, of the time of the steps of one round, and the median of the ratios is judged (floor 0.95). All requests have the same prompts;
the schema's strings are so long that no answer is over before, so a mask is made and used in every step of every constrained request, which is
checked. The schema is compiled before the clock starts, as it is for every request after the first.
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
from llmx.sampling_params import RequestOutputKind
from llmx.structured_params import StructuredOutputsParams

__all__ = ["FLOOR", "SCHEMA", "measure"]

FLOOR = 0.95
REQUESTS = 32
PROMPT = "Describe book number {} of a small library as JSON.\n"
_NAMES = ("title", "author", "summary", "language", "publisher", "city", "country", "genre", "series", "review")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string", "minLength": 60, "maxLength": 80} for name in _NAMES},
    "required": list(_NAMES),
    "additionalProperties": False,
}


def measure(llm: LLM, steps: int, constrained: int) -> float:
    """Seconds for `steps` steps of decoding; the first `constrained` requests must follow SCHEMA. Raises RuntimeError when one of them does not."""
    engine = llm.llm_engine
    kind = RequestOutputKind.CUMULATIVE  # an output for each request in each step
    free = SamplingParams(temperature=0.8, seed=1, max_tokens=4 * steps + 64, ignore_eos=True, output_kind=kind)
    bound = replace(free, structured_outputs=StructuredOutputsParams(json=SCHEMA), ignore_eos=False)
    names = [f"{'constrained' if index < constrained else 'free'}-{index}" for index in range(REQUESTS)]
    for index, name in enumerate(names):
        engine.add_request(name, PROMPT.format(index), bound if index < constrained else free)
    texts: dict[str, str] = {}
    while len(texts) < REQUESTS:  # prompts
        texts.update({output.request_id: output.outputs[0].text for output in engine.step() if output.outputs[0].token_ids})
    begin = perf_counter()
    for _ in range(steps):
        outputs = engine.step()
        if len(outputs) != REQUESTS:
            raise RuntimeError(f"a step gave {len(outputs)} of {REQUESTS} tokens")
    seconds = perf_counter() - begin
    for output in outputs:
        text = output.outputs[0].text
        if output.request_id.startswith("constrained") and not text.lstrip().startswith("{"):
            raise RuntimeError(f"{output.request_id} left its form: {text[:80]!r}")
    engine.abort_request(names)
    while engine.engine.has_work:  # the slots are given back in a step
        engine.step()
    return seconds


def main() -> int:
    """The command line; exit code 1 when the median is below the floor and --assert was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48, help="timed at a stretch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--assert", dest="check", action="store_true")
    args = parser.parse_args()
    half, ratios = REQUESTS // 2, []
    with LLM(model="smollm2-135m-instruct", threads=args.threads, max_model_len=1024) as llm:
        for constrained in (0, half):
            measure(llm, 8, constrained)
        for turn in range(args.rounds):
            others = Neighbours()
            seconds = {0: 0.0, half: 0.0}
            for constrained in ((0, half, half, 0) if turn % 2 else (half, 0, 0, half)) * 2:
                seconds[constrained] += measure(llm, args.steps, constrained)
            tokens = 4 * args.steps * REQUESTS
            ratios.append(seconds[0] / seconds[half])
            used = others.read()
            busy = f"  (others used {used:.1f} processors)" if used > BUSY else ""
            rates = f"free {tokens / seconds[0]:.0f}, half constrained {tokens / seconds[half]:.0f} tokens/s"
            print(f"round {turn + 1}: {rates}, ratio {ratios[-1]:.3f}{busy}", flush=True)
    middle = median(ratios)
    print(json.dumps(describe(args.threads)))
    print(f"median {middle:.3f}, floor {FLOOR:g}{', missed' * (middle < FLOOR)}")
    return int(args.check and middle < FLOOR)


if __name__ == "__main__":
    sys.exit(main())

"""Where a step's Python time goes: microseconds of processor time per step and stage, at several numbers of requests.

    python -m benchmarks.step_time [MODEL] [--requests 1,8,32] [--steps 64] [--json FILE]

Stages of one step of decoding: `schedule` (who runs, the Step), `submit` (its arrays handed to the library, without the call itself),
`collect` (the result's arrays), `update` (tokens, ends, blocks), `rest` (the engine's own bookkeeping), `text` (detokenizing, outputs).
`python` is their sum without `text`: what the engine adds to the native call. Times are the processor time of the engine's thread, the
median over the steps, so a busy machine disturbs them little; its caches it still shares.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import thread_time_ns
from typing import Any

from llmx import LLM, SamplingParams

__all__ = ["measure", "stages"]

_STAGES = ("schedule", "submit", "native", "wait", "collect", "update", "step")


class _Watch:
    """Adds up the time of wrapped calls until `take`."""

    def __init__(self) -> None:
        self.now: dict[str, int] = defaultdict(int)

    def wrap(self, owner: Any, name: str, stage: str | Callable[[str], str]) -> None:
        """Measure owner.name as `stage`, or as what that gives for the call's first argument."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = thread_time_ns()
            try:
                return inner(*args, **kwargs)
            finally:
                self.now[stage if isinstance(stage, str) else stage(args[0])] += thread_time_ns() - began

        setattr(owner, name, timed)

    def take(self) -> dict[str, float]:
        """Microseconds per stage since the last take."""
        taken, self.now = {stage: self.now[stage] / 1000 for stage in _STAGES}, defaultdict(int)
        return taken


def stages(step: dict[str, float], turn_us: float) -> dict[str, float]:
    """The parts of one step that do not contain each other. step: times of the wrapped calls; turn_us: of the whole turn with its text."""
    submit = step["submit"] - step["native"]
    rest = step["step"] - step["schedule"] - step["submit"] - step["collect"] - step["update"]
    parts = {"schedule": step["schedule"], "submit": submit, "collect": step["collect"] - step["wait"], "update": step["update"], "rest": rest}
    return {**parts, "python": sum(parts.values()), "text": turn_us - step["step"], "native": step["native"] + step["wait"]}


def measure(llm: LLM, requests: int, steps: int) -> dict[str, float]:
    """Median microseconds per stage over decode steps of `requests` requests."""
    import llmx_cpu.executor as native

    engine, watch, seen = llm._engine, _Watch(), []
    draw = random.Random(requests)
    prompts = [[draw.randrange(100, 40000) for _ in range(16)] for _ in range(requests)]
    inner_call, inner_turn = native.call, llm._step
    targets = [(engine.scheduler, "schedule"), (engine.scheduler, "update"), (engine.executor, "submit"), (engine.executor, "collect"), (engine, "step")]
    for owner, name in targets:
        watch.wrap(owner, name, name)
    watch.wrap(native, "call", lambda function: "wait" if function == "llmx_engine_wait" else "native")

    def turn(*args: Any) -> Any:
        began = thread_time_ns()
        outputs = inner_turn(*args)
        seen.append((watch.take(), (thread_time_ns() - began) / 1000))
        return outputs

    llm._step = turn  # type: ignore[method-assign]
    try:
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=steps + 8, ignore_eos=True), use_tqdm=False)
    finally:
        native.call = inner_call
        for owner, name in (*targets, (llm, "_step")):
            delattr(owner, name)  # the instance's own attribute: the method of its class is there again
    each = [stages(step, turn_us) for step, turn_us in seen[4:-4]]  # not the prompt, not the end
    return {name: round(median(one[name] for one in each), 1) for name in each[0]}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--requests", default="1,8,32")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="1: the calling thread does all the work, so nothing else takes its caches")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = {}
    with LLM(args.model, threads=args.threads, max_model_len=512) as llm:
        for requests in map(int, args.requests.split(",")):
            result[str(requests)] = measure(llm, requests, args.steps)
            print(f"{requests:4} requests: " + "  ".join(f"{name} {value:.0f}" for name, value in result[str(requests)].items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Measure one engine on the standard workloads, in this process; prints one JSON object as the last line.

    PYTHON benchmarks/run_engine.py ENGINE MODEL [--workloads a,b] [--runs N] [--threads N] [--options JSON] [--began UNIX_TIME]

ENGINE: llmx, openvino, llamacpp, vllm or transformers, run with the Python of an environment that has it (setup_peers.sh). This file
needs nothing else, so that it runs in all of them.

Every workload: greedy, end-of-text ignored, fresh random token ids, one warm-up, then the best of N runs. Rates are tokens per second.
  start      seconds from process start (--began) to the first generated token of a 32-token prompt
  decode1    1 prompt x 32 tokens -> 128 new: new tokens over the whole time
  prefill1k  1 prompt x 1,024 tokens -> 1 new: prompt tokens over the whole time
  batch8     8 prompts x 128 -> 128 new: new tokens over the whole time
  batch32    32 prompts x 128 -> 128 new, likewise
  decode4k   1 prompt x 4,064 tokens -> 64 new: new tokens after the first over the time after the first
  decode8k   1 prompt x 8,000 tokens -> 64 new, likewise
Any other shape is written N:PROMPT:NEW (as batch8) or N:PROMPT:NEW:decode (as decode4k).
null: the engine cannot do the workload. `step`, for llmx alone: microseconds of Python per step outside the native call, at 1, 8 and 32 requests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

BEGAN = time.time()


class Shape(NamedTuple):
    """n prompts of `length` tokens, `new` tokens each; what counts: "new" tokens, "prompt" tokens, or new tokens after the first ("decode")."""

    n: int
    length: int
    new: int
    counts: str = "new"


SHAPES = {
    "decode1": Shape(1, 32, 128),
    "prefill1k": Shape(1, 1024, 1, "prompt"),
    "batch8": Shape(8, 128, 128),
    "batch32": Shape(32, 128, 128),
    "decode4k": Shape(1, 4064, 64, "decode"),
    "decode8k": Shape(1, 8000, 64, "decode"),
}
# Runs a shape; returns seconds from start to the end of the first step of new tokens, or None when the engine does not tell.
Run = Callable[[Shape], "float | None"]
RNG = random.Random(0)  # fresh prompts every time: no engine may answer from its prefix cache


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def shape_of(name: str) -> Shape:
    """The shape of a workload. Raises ValueError for a name that is none."""
    if name in SHAPES:
        return SHAPES[name]
    parts = name.split(":")
    if len(parts) not in (3, 4) or not all(p.isdigit() and int(p) > 0 for p in parts[:3]) or parts[3:] not in ([], ["decode"]):
        raise ValueError(f"{name!r} is no workload: {', '.join(SHAPES)}, or N:PROMPT:NEW[:decode]")
    return Shape(*map(int, parts[:3]), *parts[3:])


def prompts(shape: Shape) -> list[list[int]]:
    """Random prompts of a shape; ids that are plain tokens in every vocabulary that is measured."""
    return [[RNG.randrange(100, 40000) for _ in range(shape.length)] for _ in range(shape.n)]


class Settings(NamedTuple):
    """What an engine is made with. longest: tokens of the longest request; now: the clock that runs are timed with."""

    model: str
    threads: int
    longest: int
    options: dict[str, Any]
    now: Callable[[], float]


class Engine(NamedTuple):
    """How to run a shape, what the engine is, and which shapes it can do."""

    run: Run
    version: str
    able: Callable[[Shape], bool] = lambda shape: True
    step_us: Callable[[], dict[str, float]] | None = None


def llmx(given: Settings) -> Engine:
    from llmx import LLM, SamplingParams, __version__

    llm = LLM(given.model, threads=given.threads, **given.options)

    def run(shape: Shape) -> float | None:
        params = SamplingParams(temperature=0.0, max_tokens=shape.new, ignore_eos=True)
        if shape.n > 1:
            llm.generate(prompts(shape), params, use_tqdm=False)
            return None
        began, first = given.now(), 0.0
        for _ in llm.stream(prompts(shape)[0], params):
            first = first or given.now() - began
        return first

    def step_us() -> dict[str, float]:
        stats, result = llm._engine.stats(), {}
        for n in (1, 8, 32):
            best = float("inf")
            for _ in range(3):
                run(Shape(n, 16, 2))
                stats = llm._engine.stats()
                before, steps = stats.python_us, stats.steps
                run(Shape(n, 16, 64))
                stats = llm._engine.stats()
                best = min(best, (stats.python_us - before) / (stats.steps - steps))
            result[str(n)] = round(best, 1)
        return result

    return Engine(run, __version__, step_us=step_us)


def openvino(given: Settings) -> Engine:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    pipe = genai.LLMPipeline(given.model, "CPU", **{"INFERENCE_NUM_THREADS": given.threads, **given.options})

    def run(shape: Shape) -> float | None:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample, config.apply_chat_template = shape.new, True, False, False
        ids = np.array(prompts(shape), dtype=np.int64)
        began, first = given.now(), [0.0]

        def streamer(_: str) -> bool:
            first[0] = first[0] or given.now() - began
            return False

        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        if shape.counts == "decode":
            pipe.generate(inputs, config, streamer)
            return first[0]
        pipe.generate(inputs, config)
        return None

    return Engine(run, genai.__version__, lambda shape: shape.counts != "decode" or shape.n == 1)


def llamacpp(given: Settings) -> Engine:
    import llama_cpp

    settings = {"n_ctx": max(4096, given.longest), "n_threads": given.threads, "n_threads_batch": given.threads, "verbose": False, **given.options}
    llm = llama_cpp.Llama(given.model, **settings)

    def run(shape: Shape) -> float | None:
        first = None
        for prompt in prompts(shape):
            llm.reset()
            began = given.now()
            llm.eval(prompt)
            first = given.now() - began
            for token in prompts(Shape(1, shape.new, 1))[0][: shape.new - 1]:  # given tokens: the same work as greedy decoding
                llm.eval([token])
        return first

    return Engine(run, llama_cpp.__version__, lambda shape: shape.n == 1)  # the binding has no continuous batching


def vllm(given: Settings) -> Engine:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")  # by default it leaves a core idle
    os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    import vllm as library

    settings = {"max_model_len": max(4096, given.longest), "dtype": "bfloat16", "enable_prefix_caching": False, **given.options}
    llm = library.LLM(model=given.model, **settings)

    def run(shape: Shape) -> float | None:
        params = library.SamplingParams(temperature=0, max_tokens=shape.new, ignore_eos=True)
        llm.generate([{"prompt_token_ids": p} for p in prompts(shape)], params, use_tqdm=False)
        return None

    return Engine(run, library.__version__, lambda shape: shape.counts != "decode")


def transformers(given: Settings) -> Engine:
    import torch
    import transformers as library

    torch.set_num_threads(given.threads)
    net = library.AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16, **given.options).eval()

    @torch.inference_mode()
    def run(shape: Shape) -> float | None:
        ids = torch.tensor(prompts(shape))
        net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=shape.new, min_new_tokens=shape.new, do_sample=False, pad_token_id=2)
        return None

    return Engine(run, library.__version__, lambda shape: shape.counts != "decode")


ENGINES: dict[str, Callable[[Settings], Engine]] = {
    "llmx": llmx, "openvino": openvino, "llamacpp": llamacpp, "vllm": vllm, "transformers": transformers,
}  # fmt: skip


def rate(run: Run, shape: Shape, clock: Callable[[], float]) -> float:
    """Tokens per second of one run, on the given clock."""
    began = clock()
    first = run(shape)
    took = clock() - began
    if shape.counts == "decode" and first is not None:
        return shape.n * (shape.new - 1) / (took - first)
    return (shape.length if shape.counts == "prompt" else shape.n * shape.new) / took


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("--workloads", default="decode1,prefill1k,batch8,batch32")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--options", type=json.loads, default={}, help="more arguments of the engine's constructor, as JSON")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: per second of this process's processor time")
    parser.add_argument("--began", type=float, default=BEGAN, help="when the process was started, as time.time() gives it")
    args = parser.parse_args()
    wanted = [name for name in args.workloads.split(",") if name]
    shapes = {name: shape_of(name) for name in wanted if name not in ("start", "step")}
    longest = max((shape.length + shape.new for shape in shapes.values()), default=0)
    engine = ENGINES[args.engine](Settings(args.model, args.threads, longest, args.options, CLOCKS[args.clock]))
    engine.run(Shape(1, 32, 1))
    result: dict[str, Any] = {"engine": args.engine, "version": engine.version, "model": os.path.basename(args.model), "threads": args.threads}
    result["python"] = sys.version.split()[0]
    result["start"] = round(time.time() - args.began if args.clock == "wall" else time.process_time(), 3)
    for name, shape in shapes.items():
        if engine.able(shape):
            engine.run(shape._replace(new=min(shape.new, 4)) if shape.length > 2000 else shape)
            result[name] = round(max(rate(engine.run, shape, CLOCKS[args.clock]) for _ in range(args.runs)), 2)
        else:
            result[name] = None
    if "step" in wanted:
        result["step"] = engine.step_us() if engine.step_us is not None else None
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

"""What a GPU does with llmx: conformance, then decode and prefill of a random model against limits measured in the same run. See scripts/gpu_check.sh.

The model has weights of 8 bits in the shape of Llama 3 8B, made of random bytes. A decode step reads every weight once, so its limit is the
memory's rate; a long prompt is bound by float32 products.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from llmx.executor import Control, HostTensor, ModelBundle
from llmx.models.builtin import builtin_models
from llmx.models.registry import TensorLayout
from llmx.program.ops import QuantKey
from llmx.testing import Driver, MemorySource
from llmx.testing.conformance import Suite
from llmx.testing.conformance.subject import Subject
from llmx.weights.quant import quant_key

FLOOR = 0.8  # of a limit
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


def random_model(layers: int, hidden: int) -> ModelBundle:
    """The model, `hidden` / 4096 as wide: every matrix q8_0 with small random codes, every vector ones."""
    share = hidden / 4096
    config = {**LLAMA, "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": int(14336 * share) // 32 * 32}
    config |= {"vocab_size": max(int(128256 * share) // 32 * 32, 512), "head_dim": 128 if share == 1 else 32}

    def quant(name: str) -> QuantKey:
        return quant_key("f32" if "norm" in name else "q8_0")

    model = builtin_models().find(config).build(config, quant, TensorLayout())
    rng, tensors = np.random.default_rng(0), {}
    for ref in model.weights().values():
        if len(ref.shape) == 1:
            tensors[ref.name] = HostTensor("f32", ref.shape, np.ones((1, ref.shape[0]), np.float32).view(np.uint8))
            continue
        data = np.frombuffer(rng.bytes(prod(ref.shape) // 32 * 34), np.uint8).reshape(-1, 34).copy()
        data[:, :2] = np.array([0.02 / 64 / share**0.5], np.float16).view(np.uint8)
        tensors[ref.name] = HostTensor("q8_0", ref.shape, data.reshape(ref.shape[0], -1))
    return ModelBundle("random", "random", model, MemorySource(tensors), config["vocab_size"], 4096)


def seconds(work: Callable[[], Any], device: torch.device, runs: int = 5) -> float:
    """The shortest of a few runs, the device's own work included."""
    best = float("inf")
    for _ in range(runs + 1):  # the first one warms up
        began = perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        best = min(best, perf_counter() - began)
    return best


def limits(device: torch.device) -> dict[str, float]:
    """Bytes read per second by a sum over a large tensor, and float32 operations per second of a large product."""
    cells = 1 << (28 if device.type != "cpu" else 22)
    side = 8192 if device.type != "cpu" else 512
    flat, square = torch.ones(cells, device=device), torch.ones((side, side), device=device)
    read = cells * 4 / seconds(flat.sum, device)
    return {"bytes_per_s": read, "f32_per_s": 2 * side**3 / seconds(lambda: square @ square, device)}


def measure(subject: Subject, bundle: ModelBundle, batch: int, steps: int, prompt: int) -> dict[str, Any]:
    """Seconds of a decode step of one request and of `batch`, and of a prompt, through the executor that serves."""
    config, _ = subject.configured(max_num_seqs=batch, max_num_batched_tokens=max(prompt, batch))
    blocks = batch * 12 + -(-prompt // 16) + 40
    driver = Driver(subject.executor(bundle, blocks=blocks, config=config))
    stats = driver.executor.control(Control("stats")).value
    device = torch.device(stats["device"])
    rows = [int(token) for token in np.random.default_rng(1).integers(3, 500, prompt)]
    driver.join({0: rows})
    prefill = seconds(lambda: (driver.done.update({0: 0}), driver.step({0: rows}, [])), device, 2)
    driver.done[0] = prompt - 1
    one = seconds(lambda: [driver.step({0: [-1]}) for _ in range(steps)], device, 2) / steps
    driver.leave(0)
    driver.join(dict.fromkeys(range(batch), rows[:16]))
    for slot in range(batch):
        driver.step({slot: rows[:16]})
    many = seconds(lambda: [driver.step({slot: [-1] for slot in range(batch)}) for _ in range(steps)], device, 2) / steps
    found = {"decode1_s": one, f"decode{batch}_s": many, "prefill_s": prefill, "prompt": prompt, "graphs": stats.get("graphs", 0)}
    return {**found, "graphs_off": stats.get("graphs_off", ""), "device": stats["device"]}


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Everything as JSON."""
    began = perf_counter()
    suite = Suite(options.platform, emulate=options.emulate, areas=options.area or None).run()
    failed = [f"{one.area}: {one.name}: {one.why}" for one in suite.of("failed")]
    found: dict[str, Any] = {"conformance": {"ok": suite.ok, "counts": suite.counts(), "failed": failed}}
    subject, bundle = Subject(options.platform, emulate=options.emulate), random_model(options.layers, options.hidden)
    refs = {ref.name: ref for ref in bundle.model.weights().values()}
    table = next(name for name in refs if "embed" in name)
    read = sum(bundle.weights.get(ref).nbytes for name, ref in refs.items() if name != table)
    weights = sum(prod(ref.shape) for name, ref in refs.items() if name != table)
    providers = {choice.resolution.kinds[0]: choice.resolution.provider for choice in subject.choices(bundle)}
    times = measure(subject, replace(bundle, max_model_len=max(options.prompt + 64, 256)), options.batch, options.steps, options.prompt)
    subject.close()
    most = limits(torch.device(times["device"]))
    shares = {
        "decode1": read / times["decode1_s"] / most["bytes_per_s"],
        f"decode{options.batch}": read / times[f"decode{options.batch}_s"] / most["bytes_per_s"],
        "prefill": 2 * weights * options.prompt / times["prefill_s"] / most["f32_per_s"],
    }
    found |= {"platform": subject.facts(), "layers": options.layers, "hidden": options.hidden, "weight_bytes_per_step": read, "kernels": providers}
    found |= {"times": times, "limits": most, "share_of_limit": shares, "floor": FLOOR, "floor_met": {name: share >= FLOOR for name, share in shares.items()}}
    return {**found, "seconds": perf_counter() - began}


def main(arguments: list[str] | None = None) -> int:
    """Write the report and print what matters of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--emulate", action="store_true", help="without a GPU: tries the script out, measures nothing of use")
    parser.add_argument("--area", action="append", help="of the conformance suite; all by default")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"))
    options = parser.parse_args(arguments)
    found = report(options)
    options.output.write_text(json.dumps(found, indent=2, default=str) + "\n", encoding="utf-8")
    print(json.dumps({key: found[key] for key in ("conformance", "share_of_limit", "floor_met", "seconds")}, indent=2))
    met = options.emulate or all(found["floor_met"].values())
    return 0 if found["conformance"]["ok"] and met else 1


if __name__ == "__main__":
    raise SystemExit(main())

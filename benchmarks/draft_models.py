"""What draft models give on a CPU: a quantised and truncated copies of the target as its draft. Answers must be equal.

    python -m benchmarks.draft_models DIR [--batches 1 4] [--tasks NAME ...] [--new 120] [--threads 1] [--rounds 2] [--tokens 4]

The target is SmolLM2-135M-Instruct in bfloat16, made in DIR from the embedded file (benchmarks.make_models). Drafts: the embedded file itself (Q4_1), and
the target's first layers with its last norm and head, in int8. Prompts are computed before the clock starts; processor time counts, drafts take turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from benchmarks.drafting import TASKS, compare
from benchmarks.make_models import EMBEDDED_MODEL, make_model

from llmx import LLM

LAYERS = (24, 15)  # of 30


def truncated(target: Path, folder: Path, layers: int) -> Path:
    """A copy of a checkpoint (one safetensors file) that ends after `layers` layers; made if need be."""
    import torch  # noqa: F401 - safetensors gives bfloat16 to torch only
    from safetensors.torch import load_file, save_file

    if folder.exists():
        return folder
    shutil.copytree(target, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in (("new", 120), ("threads", 1), ("rounds", 2), ("tokens", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    asked = parser.parse_args()
    target = make_model("bf16", asked.folder)
    drafts: dict[str, dict[str, Any]] = {"Q4_1": {"model": EMBEDDED_MODEL}}
    for layers in LAYERS:
        drafts[f"{layers} layers, int8"] = {"model": str(truncated(target, asked.folder / f"first-{layers}", layers)), "quantization": "int8"}
    options: dict[str, Any] = {"model": str(target), "platform": "cpu", "threads": asked.threads, "max_model_len": 2048}
    options["num_blocks"] = 72 * (max(asked.batches) + 2)
    engines = {"none": LLM(**options)}
    for name, spec in drafts.items():
        engines[name] = LLM(speculative_config={"method": "draft_model", "num_speculative_tokens": asked.tokens, **spec}, **options)
    print("| task | batch | draft model | steps | drafted | accepted | processor time | times as fast |\n|---|---|---|---|---|---|---|---|")
    for title in asked.tasks:
        for batch in asked.batches:
            best = compare(engines, TASKS[title], batch, asked.new, asked.rounds)
            for name, one in best.items():
                counts = f"{one.steps} | {one.drafted} | {one.accepted}"
                print(f"| {title} | {batch} | {name} | {counts} | {one.seconds:.2f} s | {best['none'].seconds / one.seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()

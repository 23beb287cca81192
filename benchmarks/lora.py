"""What adapters cost: tokens per second of 32 requests, 28 of them over 8 adapters and 4 on the base, against all 32 on the base.

    python -m benchmarks.lora [--rounds 5] [--new 64] [--threads 1] [--rank 8] [--assert]

The adapters are of rank 8, bf16, on every attention and MLP matrix of SmolLM2-135M. Both kinds of batch run in turn in one process; a ratio is with / without
in one round, and their median is judged (floor 0.85). Time is this process's processor time, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
from benchmarks.machine import describe

from llmx import LLM, LoRARequest, SamplingParams

__all__ = ["FLOOR", "measure", "write_adapter"]

FLOOR = 0.85
REQUESTS, ADAPTERS = 32, 8
_HIDDEN, _KV, _FFN, _LAYERS = 576, 192, 1536, 30
_SHAPES = {
    "self_attn.q_proj": (_HIDDEN, _HIDDEN), "self_attn.k_proj": (_KV, _HIDDEN), "self_attn.v_proj": (_KV, _HIDDEN), "self_attn.o_proj": (_HIDDEN, _HIDDEN),
    "mlp.gate_proj": (_FFN, _HIDDEN), "mlp.up_proj": (_FFN, _HIDDEN), "mlp.down_proj": (_HIDDEN, _FFN),
}  # fmt: skip


def write_adapter(folder: Path, seed: int, rank: int) -> Path:
    """A folder as peft writes it, with random bf16 matrices."""
    rng, header, data = np.random.default_rng(seed), {}, b""
    for layer in range(_LAYERS):
        for name, (rows, columns) in _SHAPES.items():
            for role, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                values = (rng.normal(0, 0.02, shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
                key = f"base_model.model.model.layers.{layer}.{name}.lora_{role}.weight"
                header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
                data += values
    folder.mkdir()
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}))
    return folder


def measure(llm: LLM, new: int, adapters: list[str]) -> float:
    """Tokens per second of processor time. adapters: their names; request i uses number i modulo one more than there are, the last is the base."""
    prompts = [[1000 + 7 * index % 900 + at for at in range(16)] for index in range(REQUESTS)]
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=new, ignore_eos=True)
    chosen = [LoRARequest(adapters[index % (len(adapters) + 1)]) if index % (len(adapters) + 1) < len(adapters) else None for index in range(REQUESTS)]
    begin = process_time()
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=chosen)
    seconds = process_time() - begin
    if any(len(output.outputs[0].token_ids) != new for output in outputs):
        raise RuntimeError("an answer ended early")
    return REQUESTS * new / seconds


def main() -> int:
    """The command line; exit code 1 when the median is below the floor and --assert was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--assert", dest="judged", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        modules = [f"a{seed}={write_adapter(Path(folder) / f'a{seed}', seed, given.rank)}" for seed in range(ADAPTERS)]
        with LLM(platform="cpu", threads=given.threads, max_model_len=512, num_blocks=400, max_num_seqs=REQUESTS, lora_modules=modules) as llm:
            names = llm.llm_engine.list_loras()
            measure(llm, 8, names)
            ratios = []
            for number in range(given.rounds):
                without, beside = measure(llm, given.new, []), measure(llm, given.new, names)
                ratios.append(beside / without)
                rates = f"base {without:.0f}, with adapters {beside:.0f} tokens per second of processor time"
                print(f"round {number + 1}: {rates}, ratio {ratios[-1]:.3f}", flush=True)
    middle = median(ratios)
    print(json.dumps(describe(given.threads)))
    print(f"median {middle:.3f}, floor {FLOOR:g}{', missed' * (middle < FLOOR)}")
    return int(given.judged and middle < FLOOR)


if __name__ == "__main__":
    sys.exit(main())

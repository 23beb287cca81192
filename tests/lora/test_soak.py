"""A thousand loads and unloads while requests run: every answer right, nothing kept."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from llmx import LLM, LoRARequest, RequestOutputKind, SamplingParams
from tests.lora.adapters import random_modules, tiny_checkpoint, write_adapter

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
PROMPTS = [list(range(20, 45)), list(range(100, 103)), list(range(60, 95))]


def private_bytes() -> int:
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) << 10


@pytest.mark.slow
def test_a_thousand_loads_and_unloads_under_traffic(tmp_path: Path) -> None:
    weights = tiny_checkpoint(tmp_path / "model")
    folders = [write_adapter(tmp_path / name, random_modules(weights, seed, rank=4), alpha=8.0) for seed, name in enumerate("abc")]
    options = {"platform": "cpu", "threads": 1, "max_model_len": 128, "num_blocks": 80, "max_num_seqs": 6}
    with LLM(str(tmp_path / "model"), dtype="float32", enable_lora=True, max_loras=2, **options) as llm:
        engine = llm.llm_engine
        want = {}
        for kind, folder in enumerate([*folders, None]):
            for which, prompt in enumerate(PROMPTS):
                request = None if folder is None else LoRARequest(f"cold{kind}", 1, str(folder))
                want[kind, which] = llm.generate(prompt, GREEDY, lora_request=request)[0].outputs[0].token_ids
        for kind in range(3):
            engine.remove_lora(f"cold{kind}")
        running: dict[str, tuple[int, int]] = {}
        before, files, checked = 0, 0, 0

        def step() -> int:
            ended = engine.step()
            for output in ended:
                assert output.outputs[0].token_ids == want[running.pop(output.request_id)], output.request_id
            return len(ended)

        for turn in range(1000):
            if turn == 200:  # what is allocated once is there
                before, files = private_bytes(), len(os.listdir("/proc/self/fd"))
            kind, which, name = turn % 3, turn % len(PROMPTS), f"lora{turn % 5}"  # a name means another adapter each time
            engine.add_lora(LoRARequest(name, 1, str(folders[kind])))
            for own, request in ((kind, LoRARequest(name)), (3, None)):
                running[f"{turn}.{own}"] = own, which
                engine.add_request(f"{turn}.{own}", PROMPTS[which], GREEDY, lora_request=request)
            checked += sum(step() for _ in range(1 + turn % 3))
            engine.remove_lora(name)  # while its request runs or waits
            while engine.has_unfinished_requests() and (turn % 4 == 3 or len(running) > 12):
                checked += step()
        while engine.has_unfinished_requests():
            checked += step()
        assert checked == 2000 and not running and engine.list_loras() == [] and engine.engine.stats().lora_swaps > 900
        engine.engine.adapters.slots.sweep(())  # type: ignore[attr-defined]
        assert engine.engine.stats().lora_slots_used == 0
        assert len(os.listdir("/proc/self/fd")) == files
        assert private_bytes() < before * 1.03

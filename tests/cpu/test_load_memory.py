"""Private memory while a model is loaded: at most what stays, and two of the largest tensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmx.config import ModelConfig
from llmx.errors import LlmxError
from llmx.weights.sources import locate

ROOT = Path(__file__).parents[2]
LARGEST = 49152 * 576 // 32 * 34  # bytes of SmolLM2's embedding, Q8_0

# Runs in a process of its own. hoard: keep a copy of every tensor until the load is over, as a loader without views would.
CODE = """
import json, sys, threading, time
from tests.cpu.native_model import config_for, native_executor
from tests.cpu.test_load_memory import private_bytes as private
from llmx.config import ModelConfig
from llmx.models.load import load_model
from llmx_cpu.native import library

def watch():
    while not done.wait(0.0005):
        seen.append(private())

hoard, library_loaded = sys.argv[1] == "hoard", library()
before, seen, kept, done = private(), [], [], threading.Event()
thread = threading.Thread(target=watch)
thread.start()
bundle = load_model(ModelConfig()).bundle
if hoard:
    read = bundle.weights.get
    bundle.weights.get = lambda ref: (kept.append(read(ref).data.copy()), read(ref))[1]
executor = native_executor(bundle, config_for(), blocks=8)
seen.append(private())
kept.clear()
done.set()
thread.join()
print(json.dumps({"before": before, "peak": max(seen), "steady": private(), "samples": len(seen)}))
"""


def measure(mode: str) -> dict[str, int]:
    run = subprocess.run([sys.executable, "-c", CODE, mode], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, int] = json.loads(run.stdout)
    return found


def test_loading_takes_little_more_than_what_stays() -> None:
    try:
        locate(ModelConfig().source)
    except LlmxError as error:
        pytest.skip(f"the embedded model is not installed: {error}")
    plain, hoarded = measure("plain"), measure("hoard")
    assert plain["samples"] > 20 and plain["steady"] - plain["before"] > 60e6  # the packed weights
    assert plain["peak"] <= plain["steady"] + 2 * LARGEST, plain
    assert hoarded["peak"] > plain["steady"] + 2 * LARGEST, "the measure does not see a loader that keeps copies"


PREFAULT = """
import sys
from llmx import LLM
from tests.cpu.test_load_memory import private_bytes
before = private_bytes()
with LLM(model=sys.argv[1], platform="cpu", threads=1, num_blocks=1000, max_model_len=256) as llm:
    print((private_bytes() - before) >> 20)
"""


def private_bytes() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


@pytest.mark.parametrize("prefault", ["0", "1"])
def test_the_kv_cache_takes_its_memory_at_the_start_when_asked_to(prefault: str) -> None:
    try:
        locate(ModelConfig().source)
    except LlmxError as error:
        pytest.skip(f"no model: {error}")
    environ = {**os.environ, "LLMX_CPU_PREFAULT": prefault}
    run = subprocess.run([sys.executable, "-c", PREFAULT, ModelConfig().source], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=True)
    kv_mib = 1000 * 16 * 30 * 2 * 3 * 64 * 2 >> 20  # blocks x tokens x layers x (K and V) x heads x width x bf16
    assert (int(run.stdout) > 0.9 * kv_mib + 80) == (prefault == "1"), run.stdout  # the model itself takes 126

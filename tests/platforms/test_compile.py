"""torch.compile of runs of ops: the same answers, nothing compiled after ready, and nothing at all in a second start. Emulated, on torch's CPU device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

_SCRIPT = """
import json, sys
import torch
from llmx.executor import Control
from llmx.testing import Driver, tiny_llama
from llmx.testing.conformance.subject import Subject
from torch._dynamo.utils import counters

torch.set_num_threads(1)
PROMPT = [int(x) for x in range(5, 12)]

def tokens(driver):
    driver.join({0: PROMPT})
    return [int(driver.step({0: rows}).tokens[0, 0]) for rows in (PROMPT, [-1], [-1], [-1])]

subject = Subject("cuda", emulate=True)
config, _ = subject.configured(dtype="float32", max_num_seqs=1, cache_dir=sys.argv[1])
driver = Driver(subject.executor(tiny_llama(), blocks=200, config=config))
before = driver.executor.control(Control("stats")).value
frames = dict(counters["stats"])
found = tokens(driver)
print(json.dumps({"stats": {k: before[k] for k in ("compiled_now", "compiled_runs", "graphs")}, "tokens": found,
                  "later": dict(counters["stats"]) != frames, "wanted": tokens(Subject("torch").driver())}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    """Each start with an empty cache of torch's own: what the second one has comes from the first's file."""
    found = []
    for start in ("first", "second"):
        environ = {**os.environ, "LLMX_CUDA_COMPILE": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / start), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", _SCRIPT, str(tmp_path / "cache")], env=environ, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = found
    assert first["stats"]["compiled_runs"] == 3 and first["stats"]["graphs"] == 3  # before the first, between, and after the last attention
    assert first["stats"]["compiled_now"] == 3 and second["stats"] == {**first["stats"], "compiled_now": 0}
    for one in found:
        assert one["tokens"] == one["wanted"] and not one["later"]

"""Engines of two processes: the same tokens as one, with every way of scheduling; and what becomes of them when a rank ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")

from llmx.engine.engine import Engine  # noqa: E402
from llmx.engine.messages import Add  # noqa: E402
from llmx.engine.start import start_engine  # noqa: E402
from llmx.errors import ConfigError, EngineDead, PlatformError  # noqa: E402
from llmx.executor import Control  # noqa: E402
from llmx.executor.distributed.mp import MpExecutor  # noqa: E402
from llmx.resolve import resolve  # noqa: E402
from llmx.sampling_params import SamplingParams  # noqa: E402
from tests.families.cases import SHARED, Case, _rope  # noqa: E402
from tests.families.checkpoint import write_checkpoint  # noqa: E402
from tests.server.processes import HANG_S, serve, until  # noqa: E402

FIELDS = {**SHARED, "num_key_value_heads": 3, "intermediate_size": 96, "max_position_embeddings": 256, "rope_parameters": _rope()}  # 3 heads: 1 and 2
RNG = np.random.default_rng(8)
START = RNG.integers(3, 512, 40).tolist()
PROMPTS = [START + RNG.integers(3, 512, n).tolist() for n in (5, 9, 30)] + [RNG.integers(3, 512, n).tolist() for n in (3, 50, 21)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(Case("tp", "LlamaConfig", "LlamaForCausalLM", FIELDS), folder, START)
    return str(folder)


@contextmanager
def engine_of(model: str, platform: str, size: int, **options: Any) -> Iterator[Engine]:
    """A started engine with few blocks and short chunks."""
    given = {"model": model, "platform": platform, "tensor_parallel_size": size, "dtype": "float32", "threads": 2, "max_num_seqs": 6}
    config, changes = resolve({**given, "max_num_batched_tokens": 32, "num_blocks": 15, "max_model_len": 128, **options})
    engine, _ = start_engine(config, lambda what, fraction: None, [change.path for change in changes])
    try:
        yield engine
    finally:
        engine.close()


def answers(engine: Engine, tokens: int) -> dict[str, list[int]]:
    """Six requests, three greedy and three drawn, with logprobs and penalties; two more when these are done, for what is in the prefix cache."""
    found: dict[str, list[int]] = {}

    def run(prompts: list[list[int]], name: str) -> None:
        for i, prompt in enumerate(prompts):
            params = SamplingParams(max_tokens=tokens, temperature=0.0 if i % 2 else 0.9, seed=i, ignore_eos=True, logprobs=2, presence_penalty=0.5)
            engine.add(Add(f"{name}{i}", prompt, params))
        end = time.monotonic() + HANG_S
        while engine.has_work and time.monotonic() < end:
            for item in engine.step():
                assert item.error is None, item.error
                found.setdefault(item.id, []).extend(item.tokens)
        assert not engine.has_work

    run(PROMPTS, "a")
    run(PROMPTS[:2], "b")
    return found


@pytest.mark.parametrize(("platform", "tokens"), [("cpu", 20), ("torch", 20), ("xpu", 20)])
def test_two_ranks_give_the_tokens_of_one(model: str, platform: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With chunked prompts, prefix hits and preemption, which the counters show."""
    monkeypatch.setenv("LLMX_XPU_EMULATE", "1")  # with recorded graphs between the collectives
    with engine_of(model, platform, 1) as engine:
        wanted = answers(engine, tokens)
    with engine_of(model, platform, 2) as engine:
        assert isinstance(engine.executor, MpExecutor)
        found = answers(engine, tokens)
        stats = engine.stats()
        reply = engine.executor.control(Control("stats"))
        assert reply.value["ranks"] == 2
        (other,) = engine.executor._others
    assert found == wanted and len(found) == 8
    assert stats.preemptions > 0 and stats.prefix_hits > 0
    assert other.process.returncode == 0  # told to end, and it did


def test_processors_and_grammars_reach_every_rank(model: str) -> None:
    """A late step: masks go to both ranks; what rank 0's host made of the logits comes to the other. A difference would end the engine."""
    from llmx.executor import Late
    from llmx.testing import Driver

    found = {}
    for size in (1, 2):
        with engine_of(model, "cpu", size, num_blocks=200) as engine:
            driver = Driver(engine.executor)
            local: Any = getattr(engine.executor, "_local", engine.executor)
            driver.leave(*(slot for slot in range(6) if local.history(slot) is not None))  # of the start's own steps
            driver.join({0: START, 1: PROMPTS[3]})
            mask = np.zeros((2, 16), np.uint32)
            mask[0, 3] = 1 << 7
            mask[1, :] = 0xFFFFFFFF
            first = driver.late({0: START[:20], 1: PROMPTS[3]}, Late(mask=mask)).tokens[:, 0].tolist()
            ticket = driver.executor.submit(driver.step_of({0: [5], 1: [6]}, late=True))
            driver.executor.release(ticket, Late(host_logits=lambda rows: -rows))
            found[size] = first, driver.executor.collect(ticket).tokens[:, 0].tolist()
    assert found[1] == found[2] and found[1][0][0] == 3 * 32 + 7


@pytest.mark.parametrize("platform", ["cpu", "torch"])
def test_a_dead_rank_ends_the_engine_with_its_name(model: str, platform: str) -> None:
    with engine_of(model, platform, 2) as engine:
        engine.add(Add("a", START, SamplingParams(max_tokens=50, ignore_eos=True)))
        engine.step()
        os.kill(engine.executor._others[0].process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        began = time.monotonic()
        with pytest.raises(EngineDead, match="rank 1 ended with status -9"):
            for _ in range(60):
                engine.step()
        assert time.monotonic() - began < HANG_S


def test_an_error_of_a_rank_is_told(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that drew other tokens, and one that raised: the engine ends and says so."""
    with engine_of(model, "cpu", 2) as engine:
        engine.add(Add("a", START, SamplingParams(max_tokens=50, ignore_eos=True)))
        engine.step()
        with monkeypatch.context() as patch, pytest.raises(EngineDead, match="rank 1 drew other tokens than rank 0"):
            patch.setattr("llmx.executor.distributed.mp.checksum", lambda out: 1)
            engine.step()
    with engine_of(model, "cpu", 2) as engine:
        executor: Any = engine.executor
        with pytest.raises(PlatformError, match="rank 1: a rank cannot do 'nothing'"):
            executor._ask("nothing", lambda: None)


ORPHANS = """
import sys, time
from tests.distributed.test_mp import engine_of
with engine_of(sys.argv[1], "cpu", 2) as engine:
    print(engine.executor._others[0].process.pid, flush=True)
    time.sleep(600)
"""


def test_a_start_that_fails_leaves_no_rank(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error behind the start of the ranks, such as a KV cache that is too small."""
    from llmx.engine import ranks

    started: list[Any] = []
    real = ranks._start
    monkeypatch.setattr(ranks, "_start", lambda *given: started.append(real(*given)) or started[-1])
    with pytest.raises(ConfigError, match="KV cache"), engine_of(model, "cpu", 2, num_blocks=3):
        pass
    assert [one.process.returncode for one in started] == [0]


def test_ranks_end_with_rank_0(model: str) -> None:
    """Killed outright, rank 0 tells nobody."""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", ORPHANS, model], stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        process.kill()
    until(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


def test_what_does_not_go_together_is_refused(model: str) -> None:
    for options, why in (
        ({"tensor_parallel_size": 4}, "3 key-value heads.*cannot be shared by 4 ranks; take another size"),
        ({"speculative_config": {"method": "draft_model", "model": model}}, "drafters that run on the device are not shared by ranks yet"),
    ):
        with pytest.raises(ConfigError, match=why), engine_of(model, "cpu", 2, **options):
            pass
    with pytest.raises(PlatformError, match="platform 'null' has no collectives"), engine_of(model, "null", 2):
        pass
    with engine_of(model, "cpu", 2) as engine:
        reply = engine.executor.control(Control("profile", {"rows": [1], "contexts": [1], "repeats": 1}))
        assert not reply.ok and "tensor_parallel_size" in reply.error


@pytest.mark.slow
def test_served_by_two_ranks() -> None:
    """SmolLM2 (9 heads, 3 key-value heads) over HTTP; a rank that is killed is an engine that died: it is started again, and answers as before."""
    import httpx

    options = ("--tensor-parallel-size", "2", "--dtype", "float32", "--max-model-len", "256", "--kv-cache-memory-bytes", "64M", "--platform", "cpu")
    body = {"model": "smollm2-135m-instruct", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "seed": 1}

    def text(url: str) -> str:
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=HANG_S)
        return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else ""

    def below(pid: int) -> list[int]:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    with serve(*options) as server:
        wanted = text(server.url)
        assert "Paris" in wanted
        (engine,) = below(server.process.pid)
        (rank,) = below(engine)
        os.kill(rank, signal.SIGKILL)
        until(lambda: text(server.url) == wanted)
        server.process.send_signal(signal.SIGTERM)
        assert server.end()[0] == 0

"""What paging and scheduling are worth, in numbers, on the null executor: waste, concurrency, sharing, fairness, long contexts.

Times are the null executor's own cost model (microseconds per row), so they do not depend on the machine.
"""

from __future__ import annotations

import random

import numpy as np

from llmx.kv.spec import GroupNeed, KVSpec
from tests.sched.harness import FULL, Harness, alone

MAX_LEN = 2400


def _load(count: int, seed: int) -> list[tuple[list[int], int]]:
    """Prompts of lognormal length (median 200, sigma 0.8, 20 to 2,000 tokens) with 20 to 300 new tokens each."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(200), 0.8, count), 20, 2000).astype(int)
    return [([int(token) for token in rng.integers(4, 62, length)], int(rng.integers(20, 301))) for length in lengths]


def test_almost_all_kv_slots_of_held_blocks_are_live_and_three_times_the_requests_run() -> None:
    blocks = 8 * MAX_LEN // 16 + 1  # room for 8 requests of full length, were it allocated in advance
    harness = Harness([FULL], num_blocks=blocks, slots=256, max_tokens=1024, max_len=MAX_LEN, prefix_caching=False, nan=False)
    harness.check = lambda: None  # type: ignore[method-assign]  # integrity has its own tests
    for index, (prompt, new) in enumerate(_load(256, seed=1)):
        harness.add(f"r{index}", prompt, max_tokens=new, ignore_eos=True)
    live, concurrent = [], []
    while harness.engine.has_work:
        harness.step()
        running = list(harness.engine.scheduler.running)
        held = harness.engine.kv.blocks_held * 16
        if held:
            live.append(sum(request.num_computed for request in running) / held)
            concurrent.append(len(running))
    busy = slice(0, int(len(concurrent) * 0.8))  # the end of the load has nobody left to admit
    assert np.mean(live) >= 0.96, np.mean(live)
    assert np.mean(concurrent[busy]) >= 3 * 8, np.mean(concurrent[busy])
    assert set(harness.ends.values()) == {"length"}


def test_eight_answers_share_a_prompt_of_1024_tokens() -> None:
    harness = Harness([FULL], num_blocks=200, slots=8, max_tokens=2048, max_len=2048, nan=False)
    prompt = [4 + index % 50 for index in range(1030)]  # 64 full blocks and a part of one
    harness.add("n", prompt, n=8, temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
    while harness.engine.scheduler.running or harness.steps == 0:
        harness.step()
        generated = [request.num_generated for request in harness.live()]
        if generated and min(generated) == 11:  # 1,040 tokens computed: each has filled its own 65th block
            assert harness.engine.kv.blocks_held == 64 + 8 * 1
    assert harness.engine.kv.blocks_held == 0
    for index in range(8):
        assert harness.answers["n", index] == alone(harness, prompt, harness.added["n"][1], index)


def test_a_long_prompt_lengthens_the_gaps_of_others_at_most_2_5_times() -> None:
    harness = Harness([FULL], num_blocks=600, slots=32, max_tokens=1024, max_len=5000, nan=False)
    harness.check = lambda: None  # type: ignore[method-assign]
    for index in range(31):
        harness.add(f"r{index}", [4 + index % 50, 5, 6], max_tokens=200, ignore_eos=True)
    times: list[float] = []
    collect = harness.executor.collect

    def timed(ticket: object) -> object:
        out = collect(ticket)  # type: ignore[arg-type]
        times.append(float(out.t_us[0] + out.t_us[1]))
        return out

    harness.executor.collect = timed  # type: ignore[method-assign, assignment]
    for _ in range(60):
        harness.step()
    alone_us = np.percentile(times[20:], 99)
    times.clear()
    harness.add("long", [4 + index % 55 for index in range(4096)], max_tokens=2, ignore_eos=True)
    while ("long", 0) not in harness.ends:
        harness.step()
    assert np.percentile(times, 99) <= 2.5 * alone_us, (np.percentile(times, 99), alone_us)
    assert 20 < len(times) < 200  # chunks small enough for the others, large enough to end


def test_ten_prompts_of_30k_tokens_among_a_hundred_short_ones() -> None:
    need = GroupNeed(KVSpec("full", 1, 8, 8), ("full",), 16, 128, "i64")
    harness = Harness([need], num_blocks=40_000 // 16 + 1, slots=64, max_tokens=2048, max_len=32_768, nan=False)
    harness.check = lambda: None  # type: ignore[method-assign]
    rng = random.Random(5)
    for index in range(10):
        harness.add(f"long{index}", [rng.randrange(4, 62) for _ in range(30_000)], max_tokens=4, ignore_eos=True)
        for short in range(10):
            harness.add(f"short{index}.{short}", [rng.randrange(4, 62) for _ in range(30)], max_tokens=10, ignore_eos=True)
    harness.run(limit=5000)
    order = [item.id for item in harness.news if item.finish_reason]
    assert set(harness.ends.values()) == {"length"} and len(order) == 110
    last_long = max(index for index, name in enumerate(order) if name.startswith("long"))
    assert sum(name.startswith("short") for name in order[:last_long]) >= 90  # they end while long ones are under way
    harness.engine.kv.check_integrity([])

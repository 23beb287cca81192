"""Short steps that are started ahead: who leads them changes nothing, and whatever asks in between waits for them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.cpu.native_model import Driver, config_for, native_executor, tiny_llama

from llmx import LLM, SamplingParams
from llmx.errors import PlatformError
from llmx.executor import Control, Step
from llmx_cpu.executor import NativeExecutor

PROMPT = [int(t) for t in np.random.default_rng(4).integers(0, 512, 40)]


def started(threads: int) -> Driver:
    driver = Driver(native_executor(tiny_llama("q4_1"), config_for(threads=threads)))
    driver.join({0: PROMPT})
    return driver


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = started(2)
    yield made
    made.executor.close()


def next_step(driver: Driver, seq: int) -> Step:
    """One row of slot 0, whose token only the executor knows."""
    step = driver.step_of({0: [-1]}, samples=np.array([(0, 0, 1)], np.int32))
    step.seq = seq
    return step


def in_turn(count: int) -> list[int]:
    """The prompt's token and `count` more on one thread, each step collected before the next."""
    driver = started(1)
    assert driver.executor.limits.max_inflight == 1
    drawn = [int(driver.step({0: PROMPT}).tokens[0, 0])]
    for _ in range(count):
        drawn.append(int(driver.step({0: [drawn[-1]]}).tokens[0, 0]))
    driver.executor.close()
    return drawn


@pytest.mark.parametrize("pause", [0.0, 0.002], ids=["the caller comes first", "a worker comes first"])
def test_two_steps_in_flight_draw_what_steps_in_turn_draw(driver: Driver, pause: float) -> None:
    executor: NativeExecutor = driver.executor
    assert executor.limits.max_inflight == 2
    drawn, tickets = [int(driver.step({0: PROMPT}).tokens[0, 0])], []
    for seq in range(100, 140):
        tickets.append(executor.submit(next_step(driver, seq)))
        assert tickets[-1].more
        time.sleep(pause)
        if len(tickets) == 2:
            drawn.append(int(executor.collect(tickets.pop(0)).tokens[0, 0]))
    drawn.append(int(executor.collect(tickets.pop(0)).tokens[0, 0]))
    assert drawn == in_turn(40)
    executor.check_slots({0: [*PROMPT, *drawn]})


def test_a_step_runs_while_the_caller_does_something_else(driver: Driver) -> None:
    """A second is enough for any machine: nothing is left to wait for."""
    driver.step({0: PROMPT})
    ticket = driver.executor.submit(next_step(driver, 100))
    time.sleep(1.0)
    out = driver.executor.collect(ticket)
    assert out.waited_us is not None and out.waited_us < 200_000 and out.t_us[0] > 0 and out.count.tolist() == [1]


def test_a_long_step_is_not_followed_by_another(driver: Driver) -> None:
    """With nothing in flight it has run when `submit` returns; behind a short one it waits its turn. Then the caller shall collect."""
    executor = driver.executor
    driver.join({1: PROMPT, 2: PROMPT})
    ticket = executor.submit(driver.step_of({0: PROMPT}, head=np.array([39], np.int32), samples=np.array([(0, 0, 1)], np.int32)))
    assert not ticket.more
    first = executor.collect(ticket)
    assert first.waited_us is None
    short = executor.submit(next_step(driver, 100))
    both = driver.step_of({0: [-1], 1: PROMPT}, head=np.array([0, 40], np.int32), samples=np.array([(0, 0, 1), (1, 1, 1)], np.int32))
    both.seq = 101
    long = executor.submit(both)
    assert short.more and not long.more
    with pytest.raises(PlatformError, match=r"step 102 was submitted before step 100 was collected: the native executor takes 2 at a time"):
        executor.submit(Step(102))
    drawn = [first, executor.collect(short), executor.collect(long)]
    expected = in_turn(2)
    assert [int(out.tokens[0, 0]) for out in drawn] == expected and int(drawn[2].tokens[1, 0]) == expected[0]


def test_steps_are_collected_in_order_and_an_error_is_told_with_its_step(driver: Driver) -> None:
    executor = driver.executor
    wrong = executor.submit(Step(100, left=np.array([7], np.int32)))
    other = executor.submit(Step(101))
    with pytest.raises(PlatformError, match="step 101 is not the oldest in flight"):
        executor.collect(other)
    with pytest.raises(PlatformError, match=r"left\[0\] is slot 7: no request holds it"):
        executor.collect(wrong)
    assert executor.collect(other).seq == 101


def test_what_asks_in_between_waits(driver: Driver) -> None:
    executor = driver.executor
    driver.step({0: PROMPT})
    tickets = [executor.submit(next_step(driver, seq)) for seq in (100, 101)]
    assert executor.control(Control("stats")).ok
    assert len(executor.history(0)) == len(PROMPT) + 3, "both steps have drawn"
    for ticket in tickets:
        executor.collect(ticket)
    executor.submit(next_step(driver, 102))
    executor.close()  # with a step in flight


def test_answers_are_those_of_one_thread_with_stops_aborts_and_newcomers() -> None:
    """Requests come and go at random: what runs ahead of a stop or an abort is dropped, and every block is free again."""
    rng = random.Random(5)
    prompts = [[rng.randrange(100, 40_000) for _ in range(rng.randrange(1, 60))] for _ in range(24)]
    plans = [
        {"max_tokens": rng.randrange(1, 30), "stop_token_ids": rng.sample(range(49_152), 9_000), "seed": i, "temperature": rng.choice([0.0, 1.0])}
        for i in range(24)
    ]
    starts = sorted(rng.randrange(60) for _ in prompts)
    aborts = {index: rng.randrange(3, 12) for index in rng.sample(range(24), 6)}

    def answers(threads: int) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        with LLM("smollm2-135m-instruct", platform="cpu", threads=threads, num_blocks=400, max_model_len=256) as llm:
            engine, step = llm.llm_engine, 0
            while step < 60 or engine.has_unfinished_requests():
                for index, at in enumerate(starts):
                    if at == step:
                        engine.add_request(str(index), prompts[index], SamplingParams(**plans[index]))
                    if index in aborts and at + aborts[index] == step:
                        engine.abort_request(str(index))
                for out in engine.step():
                    found[out.request_id] = list(out.outputs[0].token_ids)
                step += 1
            stats = llm._engine.stats()
            assert stats.kv_blocks_used == 0 and stats.requests_running == 0
        return found

    one, two = answers(1), answers(2)
    whole = [str(index) for index in range(24) if index not in aborts]
    assert {name: two[name] for name in whole} == {name: one[name] for name in whole}
    assert all(two[name][: len(one.get(name, []))] == one.get(name, [])[: len(two[name])] for name in two)
    assert len({len(one[name]) for name in whole}) > 5


@pytest.mark.slow
def test_beside_a_process_that_spins_one_thread_decodes_and_later_two_again() -> None:
    """Of two threads on two processors one would be preempted again and again. 60 s are a hang guard."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with LLM("smollm2-135m-instruct", platform="cpu", threads=2, num_blocks=200, max_model_len=512) as llm:

            def handed_over() -> float:
                """Phases that both threads could share, of each step of an answer."""
                executor, steps = llm._engine.executor, llm._engine.stats().steps
                first = executor.control(Control("stats")).value["phases"]
                llm.generate("A story:", SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True), use_tqdm=False)
                return float(executor.control(Control("stats")).value["phases"] - first) / (llm._engine.stats().steps - steps)

            def becomes(fewer: bool) -> bool:
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    if (handed_over() < 75) == fewer:
                        return True
                return False

            assert becomes(fewer=True)
            other.kill()
            assert becomes(fewer=False)
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()

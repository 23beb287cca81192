"""Queue limits: how many requests and tokens may wait, and how long; whoever has run is never refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmx.config import SchedulerConfig
from llmx.engine.messages import Add
from llmx.errors import QueueFull, QueueTimeout
from llmx.sampling_params import SamplingParams
from llmx.sched.queue_limits import QueueLimits
from tests.sched.harness import FULL, Harness


def limited(harness: Harness, now: list[float] | None = None, **limits: object) -> QueueLimits:
    """Give the harness's engine these limits; `now` holds the time."""
    clock = (lambda: now[0]) if now is not None else None
    config = replace(SchedulerConfig(), **limits)  # type: ignore[arg-type]
    scheduler = harness.engine.scheduler
    if clock is not None:
        scheduler._clock = clock
    harness.engine.queue = QueueLimits(config, scheduler, *([clock] if clock is not None else []))
    return harness.engine.queue


def test_tokens_that_wait_are_limited_but_one_request_may_always_wait() -> None:
    harness = Harness([FULL], slots=1, num_blocks=40)
    limited(harness, max_queued_tokens=50)
    harness.add("runs", [4] * 10, max_tokens=4, ignore_eos=True)
    harness.step()
    harness.add("larger than the limit", [5] * 60)
    with pytest.raises(QueueFull, match=r"60 tokens are waiting, with 5 more it would be over the limit of 50 \(--max-num-queued-tokens\)") as caught:
        harness.add("beside it", [6] * 5)
    assert caught.value.retry_after_s >= 1 and caught.value.status == 503
    harness.run()
    harness.add("later", [6] * 5)
    harness.run()
    assert set(harness.ends) == {("runs", 0), ("larger than the limit", 0), ("later", 0)}


def test_requests_that_wait_are_limited() -> None:
    harness = Harness([FULL], slots=1, num_blocks=40)
    limited(harness, max_queued_requests=2)
    for name in ("runs", "first", "second"):
        harness.add(name, [4] * 5)
        harness.step()
    with pytest.raises(QueueFull, match=r"2 requests are waiting, which is the limit \(--max-num-queued-reqs\)"):
        harness.add("third", [4] * 5)
    harness.run()
    assert len(harness.ends) == 3


def test_who_waits_too_long_for_the_first_step_is_refused_and_leaves_nothing() -> None:
    now = [100.0]
    harness = Harness([FULL], slots=2, num_blocks=40)
    limited(harness, now, queue_timeout_s=5.0)
    harness.add("runs", [4] * 10, max_tokens=40, ignore_eos=True)
    harness.add("runs too", [4] * 10, max_tokens=40, ignore_eos=True)
    harness.step()
    harness.add("late", [5] * 10, n=2)
    now[0] += 4.9
    harness.step()
    assert harness.engine.expire() == []
    harness.add("later", [6] * 10)
    now[0] += 0.2
    ((name, error),) = harness.engine.expire()
    assert name == "late" and isinstance(error, QueueTimeout) and "waited 5 s" in str(error) and "--queue-timeout" in str(error)
    assert harness.engine.expire() == [] and error.status == 503
    harness.check()
    del harness.answers["late", 0], harness.answers["late", 1]
    harness.run()
    assert harness.engine.stats().requests_finished == {"length": 2, "timeout": 2, harness.ends["later", 0]: 1} or harness.ends["later", 0] == "length"


def test_a_preempted_request_is_never_refused() -> None:
    now = [100.0]
    harness = Harness([FULL], slots=4, num_blocks=12, max_len=120, nan=False)
    limited(harness, now, queue_timeout_s=1.0)
    for index in range(4):
        harness.engine.add(Add(f"r{index}", [4 + index] * 20, SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)))
        harness.answers[f"r{index}", 0] = []
    while not harness.engine.scheduler.num_preemptions:
        harness.step()
    assert len(harness.engine.scheduler.waiting) > 0
    now[0] += 1000
    assert [name for name, _ in harness.engine.expire()] == [request.id for request in harness.engine.scheduler.waiting if not request.started_s]
    harness.run()
    assert set(harness.ends.values()) == {"length"}

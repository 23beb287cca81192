"""Graph capture: what is replayed computes what the ops compute, whatever changed since it was recorded; nothing is recorded after the warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.executor import Control, Step
from llmx.testing.conformance.common import SEQS, TOKENS, VOCAB
from llmx.testing.conformance.op_programs import expected
from llmx.testing.conformance.outcome import NotRun
from llmx.testing.driver import Driver, kv_plan, logits_of
from llmx.testing.tiny_models import tiny_llama

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["CHECKS"]

_RNG = 7


def _driver(subject: Subject, **changes: Any) -> Driver:
    """A driver over a tiny llama whose executor recorded graphs. Raises NotRun on a device without."""
    if not subject.computes:
        raise NotRun("no model")
    if not subject.caps.has("graph.capture"):
        raise NotRun("no graphs")
    driver = subject.driver(tiny_llama(max_position_embeddings=TOKENS, **changes))
    stats = _stats(driver)
    assert stats.get("graphs"), f"the device has graph.capture, but nothing was recorded: {stats.get('graphs_off', 'llmx_graph_backend gave none')}"
    return driver


def _stats(driver: Driver) -> dict[str, Any]:
    reply = driver.executor.control(Control("stats"))
    assert reply.ok, reply.error
    return dict(reply.value)


def _prompt(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(_RNG + seed).integers(3, VOCAB, count)]


def _compare(subject: Subject, driver: Driver, prompts: dict[int, list[int]], chunks: list[dict[int, int]]) -> None:
    """Rows of each slot, chunk by chunk: the logits of every row against the numpy reading."""
    driver.join(prompts)
    found: dict[int, list[np.ndarray]] = {slot: [] for slot in prompts}
    for chunk in chunks:
        feed = {slot: prompts[slot][driver.done[slot] : driver.done[slot] + count] for slot, count in chunk.items()}
        for slot, logits in logits_of(driver.executor, driver.seq, feed, {slot: driver.done[slot] for slot in feed}).items():
            found[slot].append(logits)
            driver.done[slot] += len(feed[slot])
        driver.seq += 1
    bundle = tiny_llama(max_position_embeddings=TOKENS)
    for slot, prompt in prompts.items():
        rows = sum(map(len, found[slot]))
        subject.near(np.concatenate(found[slot]), expected(bundle, prompt)[:rows], f"logits of slot {slot}, {rows} rows")


def replays_see_new_inputs(subject: Subject) -> None:
    """One graph, ten steps: other tokens, other positions, other blocks each time."""
    driver = _driver(subject)
    before = _stats(driver)["replays"]
    _compare(subject, driver, {0: _prompt(0, 20)}, [{0: 10}, *[{0: 1}] * 10])
    assert _stats(driver)["replays"] > before, "no step of one row replayed a graph"


def replays_see_other_requests(subject: Subject) -> None:
    """The rows of one size belong to other requests from step to step: in another order, of other lengths, one with several rows."""
    driver = _driver(subject)
    prompts = {slot: _prompt(slot, 30) for slot in (0, 1, 2, 3)}
    _compare(subject, driver, prompts, [{0: 5, 1: 9, 2: 3, 3: 12}, {3: 1, 0: 1, 2: 1, 1: 1}, {1: 3, 0: 1}, {2: 1, 3: 1, 1: 1, 0: 1}, {0: 2, 2: 2}])


def padding_changes_nothing(subject: Subject) -> None:
    """Steps of 3, 5, 6 and 7 rows, which are padded: the logits of real rows are right, and no page of anybody changes."""
    driver = _driver(subject)
    prompts = {slot: _prompt(10 + slot, 24) for slot in range(7)}
    others = dict.fromkeys(range(7), 1)
    _compare(subject, driver, prompts, [dict.fromkeys(prompts, 6), {0: 1, 1: 1, 2: 1}, {0: 5}, dict.fromkeys(range(6), 1), {3: 7}, others, others])
    assert _stats(driver)["padded_rows"] > 0, "steps of 3, 5 and 7 rows were not padded"


def nothing_is_recorded_after_the_warm_up(subject: Subject) -> None:
    """Steps of every size from 1 row to all requests, and longer ones: the number of graphs stays."""
    driver = _driver(subject)
    before = _stats(driver)["graphs"]
    prompts = {slot: _prompt(20 + slot, SEQS + 20) for slot in range(SEQS)}
    driver.join(prompts)
    for count in range(1, SEQS + 1):
        driver.step({slot: prompts[slot][driver.done[slot] : driver.done[slot] + 1] for slot in range(count)})
    driver.step({0: prompts[0][driver.done[0] :]})
    assert _stats(driver)["graphs"] == before, "a graph was recorded while serving"


def an_empty_step_and_a_closed_executor(subject: Subject) -> None:
    """A step without rows replays nothing and harms nothing; two executors have graphs of their own."""
    driver = _driver(subject)
    driver.join({0: _prompt(0, 12)})
    first = driver.step({0: _prompt(0, 12)[:8]}, [])
    driver.run(Step(driver.seq))
    other = subject.executor(tiny_llama(max_position_embeddings=TOKENS, seed=5), blocks=200)
    assert kv_plan(other, 200, TOKENS).groups and first.count.size == 0
    other.close()
    logits = logits_of(driver.executor, driver.seq, {0: _prompt(0, 12)[8:9]}, {0: 8})[0]
    subject.near(logits, expected(tiny_llama(max_position_embeddings=TOKENS), _prompt(0, 9))[8:], "logits beside a closed executor")


CHECKS = (
    replays_see_new_inputs,
    replays_see_other_requests,
    padding_changes_nothing,
    nothing_is_recorded_after_the_warm_up,
    an_empty_step_and_a_closed_executor,
)

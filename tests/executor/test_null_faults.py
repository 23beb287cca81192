"""The null executor must notice faults in block accounting: eight planted ones, each found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from llmx.batch import KvOp, Step
from llmx.executor.null import KVFault, NullExecutor
from llmx.kv.manager import KVManager
from tests.sched.harness import FULL, SLIDING, STATE, Harness


def _load(harness: Harness) -> None:
    """Prompts that share a start, end inside a block, fork, meet again in the prefix cache and preempt each other."""
    for turn in range(2):
        for index in range(8):
            prompt = list(range(4, 36)) + [5 + index] * (3 + index)
            harness.add(f"r{turn}.{index}", prompt, max_tokens=50, ignore_eos=True, n=1 + index % 3, temperature=1.0, seed=index)
    harness.run()


def _change_steps(harness: Harness, change: Callable[[Step], None]) -> None:
    submit = harness.executor.submit

    def changed(step: Step) -> object:
        change(step)
        return submit(step)

    harness.executor.submit = changed  # type: ignore[method-assign, assignment]


def _drop_ops(kind: KvOp) -> Callable[[Harness], None]:
    def plant(harness: Harness) -> None:
        def drop(step: Step) -> None:
            step.kv_ops = step.kv_ops[step.kv_ops[:, 0] != kind]

        _change_steps(harness, drop)

    return plant


def _free_too_early(harness: Harness) -> None:
    accept = harness.engine.kv.accept

    def leaky(request: object, num_tokens: int) -> None:
        accept(request, num_tokens)  # type: ignore[arg-type]
        harness.engine.kv.pools[0].release(request.tables[0][0])  # type: ignore[attr-defined]

    harness.engine.kv.accept = leaky  # type: ignore[method-assign, assignment]

def _wrong_block(harness: Harness) -> None:
    def change(step: Step) -> None:
        if step.seq >= 3 and len(step.new_blocks[0]):
            step.new_blocks[0][0, 2] = 1 + step.new_blocks[0][0, 2] % 15

    _change_steps(harness, change)


def _stale_hash(harness: Harness) -> None:
    harness.engine.kv._extend_hashes = lambda request, num: request.hashes.extend([b"same%d" % i for i in range(len(request.hashes), num // 16)])  # type: ignore[method-assign]


def _no_private_copy(harness: Harness) -> None:
    missing = KVManager._missing
    harness.engine.kv._missing = lambda *arguments: (missing(harness.engine.kv, *arguments)[0], None)  # type: ignore[method-assign]


def _wrong_start(harness: Harness) -> None:
    def change(step: Step) -> None:
        if step.seq == 4 and len(step.start):
            step.start = step.start + np.int32(1)

    _change_steps(harness, change)


def _early_window(harness: Harness) -> None:
    harness.engine.kv.needs[1] = type(SLIDING)(type(SLIDING.spec)("sliding", 1, 8, 8, window=8), ("window",), 16, 128, "i64")


FAULTS = {
    "a block is not zeroed when it changes owner": _drop_ops(KvOp.ZERO),
    "a shared block is not copied": _drop_ops(KvOp.COPY),
    "a recurrent state is not copied at a fork": _drop_ops(KvOp.STATE_COPY),
    "a block is freed while it is read": _free_too_early,
    "a block table names another block": _wrong_block,
    "two contents have one hash": _stale_hash,
    "a shared block is written in place": _no_private_copy,
    "start is off by one": _wrong_start,
    "window blocks are given back too early": _early_window,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(fault: str) -> None:
    harness = Harness([FULL, SLIDING, STATE] if "state" in fault or "window" in fault else [FULL], num_blocks=18)
    FAULTS[fault](harness)
    harness.check = lambda: None  # type: ignore[method-assign]  # the executor itself must notice
    with pytest.raises((KVFault, ValueError)):
        _load(harness)


def test_without_fault_nothing_is_noticed() -> None:
    for needs in ([FULL], [FULL, SLIDING, STATE]):
        harness = Harness(needs, num_blocks=18)
        _load(harness)
        assert harness.engine.scheduler.num_preemptions > 0
        assert isinstance(harness.executor, NullExecutor)

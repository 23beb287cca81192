"""The native executor by itself, on quantised weights; the protocol that every executor keeps is checked in tests/conformance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.cpu.native_model import config_for, native_executor

from llmx.errors import PlatformError
from llmx.executor import Control, HostTensor, Joined, KvOp, Late, SamplingRow, Status, Step, Want
from llmx.testing import TINY, Driver, MemorySource, mask_of, tiny_llama
from llmx_cpu.executor import NativeExecutor

VOCAB = 512
PROMPT = [int(t) for t in np.random.default_rng(11).integers(0, VOCAB, 40)]
ALL = Want(top_logprobs=3)


@pytest.fixture
def driver() -> Iterator[Driver]:
    executor = native_executor(tiny_llama("q4_1", "q8_0"), config_for())
    yield Driver(executor)
    executor.close()


def test_late_masks_open_and_drop(driver: Driver) -> None:
    driver.join(dict.fromkeys(range(4), PROMPT))
    late = Late(mask=mask_of(VOCAB, [7], [7], [7], []), open=np.array([0, 1, 0, 0], bool), drop=np.array([0, 0, 1, 0], bool))
    out = driver.late(dict.fromkeys(range(4), PROMPT), late, ALL)
    assert out.tokens[0, 0] == 7 and out.tokens[1, 0] == out.lp_ids[1, 0, 1] != 7
    assert out.count.tolist() == [1, 1, 0, 0] and out.status.tolist() == [Status.OK, Status.OK, Status.OK, Status.MASK_DEAD]
    assert driver.executor.history(0) == [*PROMPT, 7] and driver.executor.history(2) == PROMPT


def test_fork_draws_from_the_parents_row_with_its_own_seed(driver: Driver) -> None:
    row = SamplingRow(temperature=1.5, seed=5)
    driver.join({0: PROMPT, 2: PROMPT}, row)
    driver.join({3: PROMPT}, replace(row, seed=6))
    alone = [int(driver.step({s: PROMPT}).tokens[0, 0]) for s in (2, 3)]
    fork = Joined(1, np.empty(0, np.int32), len(PROMPT), replace(row, seed=6), fork_of=0)
    step = Step(
        driver.seq, slot=np.array([0], np.int32), q=np.array([40], np.int32), start=np.array([0], np.int32), tokens=np.array(PROMPT, np.int32), joined=[fork],
        head=np.array([39], np.int32), samples=np.array([(0, 0, 1), (1, 0, 1)], np.int32),
    )  # fmt: skip
    out = driver.run(step)
    assert out.tokens[:, 0].tolist() == alone and driver.executor.history(1) == [*PROMPT, alone[1]]
    # the child goes on in a copy of the parent's last block
    copy = Step(
        driver.seq, slot=np.array([0, 1], np.int32), q=np.array([1, 1], np.int32), start=np.array([40, 40], np.int32), tokens=np.array([-1, -1], np.int32),
        head=np.array([0, 1], np.int32), samples=np.array([(0, 0, 1), (1, 1, 1)], np.int32), kv_ops=np.array([(KvOp.COPY, 0, 3, 700)], np.int32),
    )  # fmt: skip
    copy.new_blocks = (np.array([(1, 2, 700)], np.int32),)
    driver.seq += 1
    got = driver.executor.collect(driver.executor.submit(copy)).tokens[:, 0].tolist()
    assert got == [int(driver.step({s: [-1]}).tokens[0, 0]) for s in (2, 3)]


def test_nan_ends_one_request_alone() -> None:
    bundle = tiny_llama("f32")
    assert isinstance(bundle.weights, MemorySource)
    table = bundle.weights.tensors["model.embed_tokens.weight"]
    data = table.data.copy()
    data[100] = np.full(64, np.nan, np.float32).view(np.uint8)
    bundle.weights.tensors["model.embed_tokens.weight"] = HostTensor(table.dtype, table.shape, data)
    bundle.weights.tensors["lm_head.weight"] = table
    from llmx.models.llama import build_llama
    from llmx.weights.quant import quant_key

    untied = replace(bundle, model=build_llama({**TINY, "tie_word_embeddings": False}, lambda name: quant_key("f32")))
    executor = native_executor(untied, config_for())
    driver = Driver(executor)
    good = [t for t in PROMPT if t != 100]
    driver.join({0: good, 1: [*good[:5], 100], 2: good[:20]})
    out = driver.step({0: good, 1: [*good[:5], 100], 2: good[:20]}, want=ALL)
    assert out.status.tolist() == [Status.OK, Status.NAN, Status.OK] and out.count.tolist() == [1, 0, 1]
    driver.leave(0, 1, 2)
    driver.join({0: good})
    alone = driver.step({0: good}, want=ALL)
    assert np.array_equal(alone.lp[0], out.lp[0])
    executor.close()


def test_empty_step_and_stats(driver: Driver) -> None:
    out = driver.run(Step(driver.seq))
    assert out.count.size == 0 and out.status.size == 0
    reply = driver.executor.control(Control("stats"))
    assert reply.ok and reply.value["threads"] == 1 and reply.value["weight_bytes"] > 0
    before = reply.value["op_us"]
    driver.join({0: PROMPT})
    driver.step({0: PROMPT})
    after = driver.executor.control(Control("stats")).value["op_us"]
    assert {"linear", "mlp", "attention"} <= after.keys() and all(after[kind] >= us for kind, us in before.items())
    assert not driver.executor.control(Control("sleep")).ok


def test_bugs_of_the_caller_are_named(driver: Driver) -> None:
    executor: NativeExecutor = driver.executor
    driver.join({0: PROMPT})
    with pytest.raises(PlatformError, match="id 512, the vocabulary has 512"):
        driver.step({0: [512]})
    driver.done[0] = 0
    with pytest.raises(PlatformError, match="300 tokens .* limits 256"):
        driver.step({0: [1] * 300})
    step = Step(driver.seq, kv_ops=np.array([(KvOp.STORE, 0, 1, 1)], np.int32))
    with pytest.raises(PlatformError, match="KV operation 5"):
        driver.run(step)
    with pytest.raises(PlatformError, match="block that does not exist"):
        driver.run(Step(driver.seq, kv_ops=np.array([(KvOp.ZERO, 0, 0, 800)], np.int32)))
    ticket = executor.submit(Step(driver.seq))
    with pytest.raises(PlatformError, match="at a time"):
        executor.submit(Step(driver.seq + 1))
    executor.collect(ticket)
    executor.close()
    with pytest.raises(PlatformError, match="was closed"):
        executor.submit(Step(driver.seq))
    executor.close()


def test_float_mode_of_the_caller_is_restored(driver: Driver) -> None:
    """Denormals are flushed inside a step only."""
    tiny = np.full(4, 1e-40, np.float32)
    driver.join({0: PROMPT})
    driver.step({0: PROMPT})
    assert np.all(tiny * np.float32(1.0) == tiny) and np.all(tiny > 0)

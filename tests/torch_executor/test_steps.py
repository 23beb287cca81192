"""The torch executor by itself; the protocol that every executor keeps is checked in tests/conformance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from llmx.errors import PlatformError, ProgramError  # noqa: E402
from llmx.executor import Control, Encode, Executor, GroupPlan, HostTensor, Joined, KvOp, KVPlan, Late, SamplingRow, Status, Step, StepOutput, Want  # noqa: E402
from llmx.executor.torch.executor import HEAD_ROWS  # noqa: E402
from llmx.executor.torch.pages import Pages  # noqa: E402
from llmx.program.ops import Model, Op, Program  # noqa: E402
from llmx.sample.reference import logprobs  # noqa: E402
from llmx.testing import Driver, MemorySource, bundle_of, mask_of, tiny_llama  # noqa: E402
from tests.program.paper import falcon_h1  # noqa: E402
from tests.torch_executor.torch_model import config_for, logits_of, torch_executor  # noqa: E402

VOCAB = 512
PROMPT = [int(t) for t in np.random.default_rng(11).integers(0, VOCAB, 40)]
ALL = Want(top_logprobs=3)
ATOL = 1e-4  # torch's products round differently for different numbers of rows


@pytest.fixture
def driver() -> Iterator[Driver]:
    executor = torch_executor(tiny_llama("q4_1", "q8_0"))
    yield Driver(executor)
    executor.close()


def late_step(driver: Driver, rows: dict[int, list[int]], late: Late) -> StepOutput:
    step = driver.step_of(rows, samples=driver.last_rows(rows), late=True, want=[ALL] * len(rows))
    driver.seq += 1
    ticket = driver.executor.submit(step)
    with pytest.raises(PlatformError, match="was not released"):
        driver.executor.collect(ticket)
    driver.executor.release(ticket, late)
    return driver.executor.collect(ticket)


def test_it_is_an_executor_and_says_what_it_can(driver: Driver) -> None:
    executor = driver.executor
    assert isinstance(executor, Executor)
    assert executor.limits.features == {"collectives", "late_mask", "host_logits", "device_drafts", "lora", "lora.embeddings"}
    assert executor.limits.abis == {"torch/1"} and executor.limits.max_inflight == 1


def test_late_masks_open_and_drop(driver: Driver) -> None:
    driver.join(dict.fromkeys(range(4), PROMPT))
    late = Late(mask=mask_of(VOCAB, [7], [7], [7], []), open=np.array([0, 1, 0, 0], bool), drop=np.array([0, 0, 1, 0], bool))
    out = late_step(driver, dict.fromkeys(range(4), PROMPT), late)
    assert out.lp_ids is not None and out.tokens[0, 0] == 7 and out.tokens[1, 0] == out.lp_ids[1, 0, 1] != 7
    assert out.count.tolist() == [1, 1, 0, 0] and out.status.tolist() == [Status.OK, Status.OK, Status.OK, Status.MASK_DEAD]
    driver.executor.check_slots({0: [*PROMPT, 7], 1: [*PROMPT, int(out.tokens[1, 0])], 2: PROMPT, 3: PROMPT})


def _plain_tokens(driver: Driver, n: int) -> list[int]:
    driver.join({0: PROMPT})
    plain = [int(driver.step({0: PROMPT}).tokens[0, 0])]
    return plain + [int(driver.step({0: [-1]}).tokens[0, 0]) for _ in range(n - 1)]


def test_drafts_of_a_recurrent_model_leave_a_state_after_each() -> None:
    """STATE_COMMIT takes the accepted place; the next step goes on as if nothing was rejected."""
    config = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": VOCAB,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "mamba_d_ssm": 24, "mamba_n_heads": 3, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
        "mamba_d_conv": 4, "embedding_multiplier": 1.0, "key_multiplier": 1.0, "attention_in_multiplier": 1.0, "attention_out_multiplier": 1.0,
        "ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0, "ssm_multipliers": [1.0] * 5, "mlp_multipliers": [1.0, 1.0], "lm_head_multiplier": 1.0,
        "hidden_act": "silu", "rope_theta": 10000.0, "head_dim": 8,
    }  # fmt: skip
    from tests.torch_executor.test_ops import F32

    executor = torch_executor(bundle_of(falcon_h1.build(config, lambda name: F32), max_model_len=128))
    state = next(i for i, need in enumerate(executor.kv_needs()) if need.spec.kind == "state")
    driver = Driver(executor)
    plain = _plain_tokens(driver, 6)
    driver.join({1: PROMPT})
    driver.step({1: PROMPT})
    drafts = [plain[1], (plain[2] + 1) % VOCAB, plain[3]]
    out = driver.run(driver.step_of({1: [-1, *drafts]}, samples=np.array([(1, 0, 4)], np.int32)))
    assert out.count.tolist() == [2]  # plain[1] and plain[2]; KV and state are valid up to the draft plain[1]
    driver.done[1] = len(PROMPT) + 2
    commit = driver.step_of({1: [-1]}, samples=np.array([(1, 0, 1)], np.int32), kv_ops=np.array([(KvOp.STATE_COMMIT, state, 1, 1)], np.int32))
    assert int(driver.run(commit).tokens[0, 0]) == plain[3]
    assert [int(driver.step({1: [-1]}).tokens[0, 0]) for _ in range(2)] == plain[4:6]
    executor.close()


def test_nan_ends_one_request_alone() -> None:
    bundle = tiny_llama("f32", tie_word_embeddings=False)
    assert isinstance(bundle.weights, MemorySource)
    table = bundle.weights.tensors["model.embed_tokens.weight"]
    data = table.data.copy()
    data[100] = np.full(64, np.nan, np.float32).view(np.uint8)
    bundle.weights.tensors["model.embed_tokens.weight"] = HostTensor(table.dtype, table.shape, data)
    executor = torch_executor(bundle)
    driver = Driver(executor)
    good = [t for t in PROMPT if t != 100]
    driver.join({0: good, 1: [*good[:5], 100], 2: good[:20]})
    out = driver.step({0: good, 1: [*good[:5], 100], 2: good[:20]}, want=ALL)
    assert out.status.tolist() == [Status.OK, Status.NAN, Status.OK] and out.count.tolist() == [1, 0, 1]
    assert int(out.tokens[1, 0]) == -1
    driver.join({4: [100, 5]})
    scored = driver.run(driver.step_of({4: [100, 5]}, score=np.array([(4, 0, 1)], np.int32), score_top=np.array([0], np.int32)))
    assert scored.status.tolist() == [Status.NAN]
    executor.close()


def test_more_head_rows_than_a_block(driver: Driver) -> None:
    """Rows of one sample, and of one score span, lie in two blocks."""
    long = PROMPT * 3
    assert len(long) > HEAD_ROWS
    driver.join({0: long, 1: long})
    scored = driver.run(driver.step_of({0: long}, score=np.array([(0, 0, 119)], np.int32), score_top=np.array([1], np.int32)))
    raw = logits_of(driver.executor, driver.seq, {1: long}, {1: 0})[1]
    for at in (0, HEAD_ROWS - 1, HEAD_ROWS, 118):
        entry = logprobs(raw[at], long[at + 1], 1)
        np.testing.assert_allclose(scored.prompt_lp[0].lp[at], entry.lp, atol=ATOL)


def test_the_checkpoint_is_closed_after_load_and_not_needed_any_more() -> None:
    bundle, closed = tiny_llama("f32"), []
    source = bundle.weights
    assert isinstance(source, MemorySource)
    source.close = lambda: closed.append(True)  # type: ignore[method-assign]
    before = torch_executor(bundle)
    assert closed == [True]
    driver = Driver(before)
    driver.join({0: PROMPT, 1: PROMPT})
    token = int(driver.step({0: PROMPT}).tokens[0, 0])
    for name, tensor in source.tensors.items():
        tensor.data.flags.writeable = True
        tensor.data[:] = 0
        assert not source.tensors[name].data.any()
    assert int(driver.step({1: PROMPT}).tokens[0, 0]) == token != 0
    before.close()


def _with_hidden(model: Model) -> Model:
    """The model with the input of its last norm and its head rows as results."""
    from llmx.program.attrs import OutputAttrs

    main = model.programs["main"]
    rows = next(op for op in main.ops if op.kind == "rows")
    outputs = tuple(Op("output", (value,), (), OutputAttrs(name)) for name, value in (("hidden.last", rows.ins[0]), ("hidden.head", rows.outs[0])))
    return Model({"main": Program("main", main.inputs, (*main.ops, *outputs))}, model.states)


def test_hidden_results_where_wanted() -> None:
    bundle = tiny_llama("f32")
    executor = torch_executor(replace(bundle, model=_with_hidden(bundle.model)))
    driver = Driver(executor)
    driver.join({0: PROMPT, 1: PROMPT[:9]})
    out = driver.step({0: PROMPT, 1: PROMPT[:9]}, want=Want(hidden=("hidden.last", "hidden.head")))
    assert out.hidden["hidden.last"].shape == (49, 64) and out.hidden["hidden.head"].shape == (2, 64)
    np.testing.assert_array_equal(out.hidden["hidden.head"], out.hidden["hidden.last"][[39, 48]])
    assert driver.step({0: [-1]}).hidden == {}
    with pytest.raises(PlatformError, match=r"hidden result 'hidden\.9'"):
        driver.step({0: [-1]}, want=Want(hidden=("hidden.9",)))
    executor.close()


def test_empty_step_stats_and_controls(driver: Driver) -> None:
    out = driver.run(Step(driver.seq))
    assert out.count.size == 0 and out.status.size == 0 and out.tokens.shape == (0, 1)
    driver.join({0: PROMPT})
    reply = driver.executor.control(Control("stats"))
    assert reply.ok and reply.value["slots"] == 1 and reply.value["device"] == "cpu" and reply.value["workspace_bytes"] == 0
    weights = tiny_llama().model.weights().values()  # the tied table once, although embedding and head use it
    rope = 2048 * 16
    assert reply.value["weight_bytes"] == 4 * (sum(math.prod(ref.shape) for ref in weights) + rope)
    refused = driver.executor.control(Control("sleep"))
    assert not refused.ok and "sleep" in refused.error


def test_page_operations() -> None:
    executor = torch_executor(tiny_llama("f32"), config_for(kv="bfloat16"))
    need = executor.kv_needs()[0]
    assert need.dtype == "bf16" and need.block_bytes == 2 * 2 * 16 * 2 * 16 * 2 and need.layer_major  # k, v, layers, tokens, heads, size, bytes
    import torch

    pages = Pages(KVPlan((GroupPlan(need, 5),), 2, 64), torch.device("cpu"))
    one = pages.states[need.states[0]].tensors[0]
    one[2] = 3.0
    pages.run(np.array([(KvOp.COPY, 0, 2, 4), (KvOp.ZERO, 0, 4, 2)], np.int32), [])
    assert one[4].eq(3).all() and not one[2].any() and not pages.states[need.states[1]].tensors[0].any()
    executor.close()


def test_bugs_of_the_caller_are_named(driver: Driver) -> None:
    executor: Any = driver.executor
    driver.join({0: PROMPT})
    with pytest.raises(PlatformError, match=r"512\.\.512, the vocabulary is 0\.\.511"):
        driver.step({0: [512]})
    driver.done[0] = 0
    with pytest.raises(PlatformError, match="300 tokens, the limit is 256"):
        driver.step({0: [1] * 300})
    with pytest.raises(PlatformError, match="no transfer store: STORE"):
        driver.run(Step(driver.seq, kv_ops=np.array([(KvOp.STORE, 0, 1, 1)], np.int32)))
    for block in (0, 800):
        with pytest.raises(PlatformError, match="block 0 is never written"):
            driver.run(Step(driver.seq, kv_ops=np.array([(KvOp.ZERO, 0, 0, block)], np.int32)))
    with pytest.raises(PlatformError, match="slot 9, which no request holds"):
        driver.run(Step(driver.seq, left=np.array([9], np.int32)))
    with pytest.raises(PlatformError, match="joins slot 0, which is in use"):
        driver.run(Step(driver.seq, joined=[Joined(0, np.array([1], np.int32), 1, SamplingRow())]))
    with pytest.raises(PlatformError, match="drafts without a draft Program"):
        driver.run(Step(driver.seq, encode=[Encode("vision", "a", {}, 0)]))
    driver.done[0] = 120  # no block was given that far
    with pytest.raises(PlatformError, match="slot 0 reads or writes a block that it was not given"):
        driver.step({0: [5]})
    driver.leave(0)
    driver.run(Step(driver.seq, joined=[Joined(0, np.array(PROMPT, np.int32), 40, SamplingRow())]))
    driver.done[0] = 0  # the blocks of the slot's former owner are not the new one's
    with pytest.raises(PlatformError, match="slot 0 reads or writes a block that it was not given"):
        driver.step({0: PROMPT})
    ticket = executor.submit(Step(driver.seq))
    with pytest.raises(PlatformError, match="one at a time"):
        executor.submit(Step(driver.seq + 1))
    executor.collect(ticket)
    with pytest.raises(PlatformError, match="not the one in flight"):
        executor.collect(ticket)
    with pytest.raises(PlatformError, match="is not late"):
        executor.release(ticket, Late())
    executor.close()
    with pytest.raises(PlatformError, match="must not be closed"):
        executor.submit(Step(driver.seq))
    executor.close()


def test_models_that_it_cannot_run_are_refused() -> None:
    bundle = tiny_llama("f32")
    two = Model({**bundle.model.programs, "other": bundle.model.programs["main"]}, bundle.model.states)
    with pytest.raises(ProgramError, match="programs main, other; the torch executor runs 'main'"):
        torch_executor(replace(bundle, model=two))
    main = bundle.model.programs["main"]
    mute = Model({"main": Program("main", main.inputs, tuple(op for op in main.ops if op.kind != "output"))}, bundle.model.states)
    with pytest.raises(ProgramError, match="must give 'logits'"):
        torch_executor(replace(bundle, model=mute))

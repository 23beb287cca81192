"""The executor protocol: what a Step asks and what a StepOutput says, on a tiny llama."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.executor import Control, Executor, HostTensor, Joined, KvOp, Late, SamplingRow, Status, Step, StepOutput, Want
from llmx.sample.reference import log_softmax, ranking
from llmx.testing.conformance.common import PROMPT, TOKENS, VOCAB, last_logits, needs_late
from llmx.testing.conformance.outcome import NotRun
from llmx.testing.driver import mask_of
from llmx.testing.tiny_models import MemorySource, bundle_of, tiny_llama

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["CHECKS"]

ALL = Want(top_logprobs=3)
_FEATURES = {
    *("collectives", "device_drafts", "late_mask", "host_logits", "ahead_drafts", "kv.arena", "kv.layerwise", "host_busy"),
    *("lora", "lora.embeddings", "lora.fusions"),
}


def it_is_an_executor(subject: Subject) -> None:
    """It has every method, and limits that can be."""
    executor = subject.executor(tiny_llama(max_position_embeddings=TOKENS))
    limits = executor.limits
    assert isinstance(executor, Executor), "a method of llmx.executor.Executor is missing"
    assert limits.max_tokens >= 1 and limits.max_requests >= 1 and limits.max_inflight >= 1, f"limits below one: {limits}"
    assert limits.features <= _FEATURES, f"unknown features {sorted(limits.features - _FEATURES)}; known: {sorted(_FEATURES)}"
    assert limits.buckets is None or list(limits.buckets) == sorted(set(limits.buckets)), f"buckets are not ascending: {limits.buckets}"
    needs = executor.kv_needs()
    assert needs and all(need.block_bytes > 0 and need.block_tokens > 0 and need.states for need in needs), f"needs that cannot be: {needs}"


def an_empty_step(subject: Subject) -> None:
    """It is legal, and gives empty arrays."""
    driver = subject.driver()
    out = driver.run(Step(driver.seq))
    assert out.seq == 0 and out.count.size == 0 and out.status.size == 0 and out.tokens.shape[0] == 0, f"an empty step gave {out}"


def shapes_and_types(subject: Subject) -> None:
    """count, tokens, status, logprobs and ranks have the shapes and element types that Step says."""
    driver = subject.driver()
    driver.join({3: PROMPT, 0: PROMPT[:7]})
    out = driver.step({3: PROMPT, 0: PROMPT[:7]}, want=Want(top_logprobs=4, ids=np.array([9, 500], np.int32)))
    shapes = {"count": (2,), "tokens": (2, 1), "status": (2,), "lp_ids": (2, 1, 7), "lp": (2, 1, 7), "rank": (2, 1)}
    kinds = {"count": "int32", "tokens": "int32", "status": "uint8", "lp_ids": "int32", "lp": "float32", "rank": "int32"}
    for name, shape in shapes.items():
        array = getattr(out, name)
        assert array is not None and array.shape == shape and array.dtype == kinds[name], f"{name}: {array!r}, wanted {kinds[name]} {shape}"
    assert out.count.tolist() == [1, 1] and out.status.tolist() == [0, 0] and ((out.tokens >= 0) & (out.tokens < VOCAB)).all()


def logprobs_are_of_the_raw_logits(subject: Subject) -> None:
    """The most likely ids, the ids asked for and the rank, whatever the sampling row does to the logits."""
    driver = subject.driver()
    needs_late(driver)
    raw = last_logits(driver, 1, PROMPT)
    driver.join({0: PROMPT}, SamplingRow(bias_ids=np.array([77], np.int32), bias=np.array([50.0], np.float32)))
    out = driver.step({0: PROMPT}, want=Want(top_logprobs=4, ids=np.array([9, 500], np.int32)))
    assert out.lp is not None and out.lp_ids is not None and out.rank is not None
    assert out.tokens[0, 0] == 77, f"a bias of 50 on token 77 gave token {out.tokens[0, 0]}"
    assert out.lp_ids[0, 0].tolist() == [77, *ranking(raw)[:4], 9, 500], f"ids {out.lp_ids[0, 0].tolist()}"
    subject.near(out.lp[0, 0], log_softmax(raw)[out.lp_ids[0, 0]], "logprobs")
    assert out.rank[0, 0] == 1 + (raw > raw[77]).sum(), f"rank {out.rank[0, 0]} of token 77"


def an_unknown_token_is_the_last_one_drawn(subject: Subject) -> None:
    """-1 as input stands for what the executor produced last for the slot."""
    driver = subject.driver()
    driver.join({5: PROMPT})
    first = int(driver.step({5: PROMPT}).tokens[0, 0])
    second = int(driver.step({5: [-1]}).tokens[0, 0])
    driver.join({6: [*PROMPT, first]})
    assert int(driver.step({6: [*PROMPT, first]}).tokens[0, 0]) == second, "-1 and the token itself give different tokens"


def alone_in_a_batch_and_in_chunks(subject: Subject) -> None:
    """Tokens and logprobs of a request do not depend on its neighbours or on how its prompt was cut."""
    driver = subject.driver()
    prompts = {0: PROMPT, 1: PROMPT[:7], 2: PROMPT[3:30]}
    together = driver.generate(prompts, 5)
    for slot, prompt in prompts.items():
        for chunk in (1000, 1, 9):
            alone = driver.generate({slot: prompt}, 5, chunk=chunk)[slot]
            assert [token for token, _ in alone] == [token for token, _ in together[slot]], f"slot {slot} in chunks of {chunk}: other tokens"
            subject.same(np.array([lp for _, lp in alone]), np.array([lp for _, lp in together[slot]]), f"logprobs of slot {slot} in chunks of {chunk}")


def a_chunk_without_a_sample(subject: Subject) -> None:
    """A chunk that does not end the prompt draws nothing, beside a request that does."""
    driver = subject.driver()
    driver.join({0: PROMPT, 1: PROMPT})
    whole = driver.step({0: PROMPT})
    out = driver.step({1: PROMPT[:20], 0: [-1]}, sample=[0])
    assert out.count.tolist() == [1] and out.status.tolist() == [0, 0], f"count {out.count.tolist()}, status {out.status.tolist()}"
    assert int(driver.step({1: PROMPT[20:]}).tokens[0, 0]) == int(whole.tokens[0, 0])


def late_masks_open_and_drop(subject: Subject) -> None:
    """A late step waits for its masks: masked, open and dropped rows, and a mask that allows nothing."""
    driver = subject.driver()
    needs_late(driver)
    driver.join(dict.fromkeys(range(4), PROMPT))
    free = int(ranking(last_logits(driver, 9, PROMPT))[0])
    late = Late(mask=mask_of(VOCAB, [7], [7], [7], []), open=np.array([0, 1, 0, 0], bool), drop=np.array([0, 0, 1, 0], bool))
    out = driver.late(dict.fromkeys(range(4), PROMPT), late, ALL)
    assert out.tokens[:2, 0].tolist() == [7, free], f"masked and open rows gave {out.tokens[:2, 0].tolist()}, wanted {[7, free]}"
    assert out.count.tolist() == [1, 1, 0, 0], f"count {out.count.tolist()}"
    assert out.status[3] == Status.MASK_DEAD and out.status[:2].tolist() == [Status.OK, Status.OK], f"status {out.status.tolist()}"


def a_mask_across_words(subject: Subject) -> None:
    """Bits 31, 32, 63 and the last token of the vocabulary."""
    driver = subject.driver()
    needs_late(driver)
    ids = (31, 32, 63, VOCAB - 1)
    driver.join(dict.fromkeys(range(4), PROMPT))
    out = driver.late(dict.fromkeys(range(4), PROMPT), Late(mask=mask_of(VOCAB, *([i] for i in ids))))
    assert out.tokens[:, 0].tolist() == list(ids), f"masks of one token each, {ids}, gave {out.tokens[:, 0].tolist()}"


def host_logits_see_and_change_the_rows(subject: Subject) -> None:
    """The host's function gets the rows of all samples, in their order, and what it returns is sampled."""
    driver = subject.driver()
    needs_late(driver)
    driver.join({0: PROMPT, 1: PROMPT[:9]})
    seen = []

    def force(rows: np.ndarray) -> np.ndarray:
        seen.append(rows.copy())
        rows = rows.copy()
        rows[1, 3] = 1e4
        return rows

    out = driver.late({0: PROMPT, 1: PROMPT[:9]}, Late(host_logits=force))
    assert seen[0].shape == (2, VOCAB) and seen[0].dtype == np.float32, f"host_logits got {seen[0].dtype} {seen[0].shape}"
    assert out.tokens[:, 0].tolist() == [int(seen[0][0].argmax()), 3], f"tokens {out.tokens[:, 0].tolist()}"


def verified_drafts_give_the_tokens_of_single_steps(subject: Subject) -> None:
    """Accepted drafts and one token more; rejected rows leave nothing behind."""
    driver = subject.driver()
    driver.join({0: PROMPT, 1: PROMPT})
    plain = [int(driver.step({0: tokens}).tokens[0, 0]) for tokens in (PROMPT, *[[-1]] * 4)]
    driver.step({1: PROMPT})
    drafts = [plain[1], plain[2], (plain[3] + 1) % VOCAB, plain[4]]
    out = driver.run(driver.step_of({1: [-1, *drafts]}, samples=np.array([(1, 0, 5)], np.int32)))
    assert out.count.tolist() == [3] and out.tokens[0].tolist() == [*plain[1:4], -1, -1], f"count {out.count}, tokens {out.tokens}, wanted {plain[1:4]}"
    driver.done[1] = len(PROMPT) + 3  # the rejected rows' pages are written again
    assert int(driver.step({1: [-1]}).tokens[0, 0]) == plain[4], "after rejected drafts another token follows"


def a_row_that_fails_behind_a_draft(subject: Subject) -> None:
    """What was drawn before it goes out; the next step meets the failure in its first row, as without drafts."""
    driver = subject.driver()
    needs_late(driver)
    driver.join({0: PROMPT})
    driver.step({0: PROMPT[:-1]}, [])
    step = driver.step_of({0: [PROMPT[-1], 7, 8]}, samples=np.array([(0, 0, 3)], np.int32), late=True)
    step.new_blocks = tuple(np.empty((0, 3), np.int32) for _ in driver.executor.kv_needs())
    driver.seq += 1
    ticket = driver.executor.submit(step)
    driver.executor.release(ticket, Late(mask=mask_of(VOCAB, [7], [8], [])))
    out = driver.executor.collect(ticket)
    assert out.count.tolist() == [2] and out.tokens[0].tolist() == [7, 8, -1], f"count {out.count}, tokens {out.tokens}"
    assert out.status.tolist() == [Status.OK], f"status {out.status}"
    driver.done[0] = len(PROMPT) + 1
    again = driver.late({0: [8]}, Late(mask=mask_of(VOCAB, [])))
    assert again.status.tolist() == [Status.MASK_DEAD], f"the failure is not met again: status {again.status}"


def prompt_logprobs_across_chunks(subject: Subject) -> None:
    """Score spans, also where the next token lies in the next chunk."""
    driver = subject.driver()
    driver.join({0: PROMPT, 1: PROMPT})
    whole = driver.score(0, PROMPT, 39).prompt_lp[0]
    parts = [driver.score(1, PROMPT[:13], 13).prompt_lp[0], driver.score(1, PROMPT[13:], 26).prompt_lp[0]]
    assert whole.ids.shape == (39, 3) and whole.ids[:, 0].tolist() == PROMPT[1:], "column 0 must be the token that follows"
    subject.same(np.concatenate([p.lp for p in parts]), whole.lp, "prompt logprobs")
    assert np.array_equal(whole.rank == 1, whole.ids[:, 0] == whole.ids[:, 1]) and (whole.lp[:, 1] >= whole.lp[:, 0]).all(), "ranks and order"


def forks_draw_with_their_own_seed(subject: Subject) -> None:
    """n > 1: a child draws from the parent's row, then goes on in a copy of the parent's last block."""
    driver = subject.driver()
    row = SamplingRow(temperature=1.5, seed=5)
    driver.join({0: PROMPT, 2: PROMPT}, row)
    driver.join({3: PROMPT}, replace(row, seed=6))
    alone = [int(driver.step({s: PROMPT}).tokens[0, 0]) for s in (2, 3)]
    fork = Joined(1, np.empty(0, np.int32), len(PROMPT), replace(row, seed=6), fork_of=0)
    driver.done[1] = len(PROMPT)
    out = driver.run(driver.step_of({0: PROMPT}, joined=[fork], samples=np.array([(0, 39, 1), (1, 39, 1)], np.int32)))
    assert out.tokens[:, 0].tolist() == alone, f"parent and child drew {out.tokens[:, 0].tolist()}, alone they draw {alone}"
    copy = driver.step_of({0: [-1], 1: [-1]}, samples=np.array([(0, 0, 1), (1, 1, 1)], np.int32), kv_ops=np.array([(KvOp.COPY, 0, 3, 500)], np.int32))
    copy.new_blocks = (np.array([(1, 2, 500)], np.int32),)
    got = driver.run(copy).tokens[:, 0].tolist()
    assert got == [int(driver.step({s: [-1]}).tokens[0, 0]) for s in (2, 3)], "after the fork parent or child goes on differently"


def a_preempted_request_goes_on(subject: Subject) -> None:
    """Left, and joined again with what it had generated: the same tokens and logprobs."""
    driver = subject.driver()
    driver.join({0: PROMPT})
    outs = [driver.step({0: tokens}, want=ALL) for tokens in (PROMPT, [-1], [-1], [-1])]
    tokens = [int(out.tokens[0, 0]) for out in outs]
    driver.leave(0)
    again = [*PROMPT, *tokens[:3]]
    driver.join({0: again})
    out = driver.step({0: again}, want=ALL)
    assert int(out.tokens[0, 0]) == tokens[3], "another token after a preemption"
    assert out.lp is not None and outs[3].lp is not None
    subject.same(out.lp, outs[3].lp, "logprobs after a preemption")


def a_slot_is_used_again(subject: Subject) -> None:
    """left and joined in one Step: the new owner has nothing of the old one's history, row or pages."""
    driver = subject.driver()
    other = PROMPT[::-1][:23]
    driver.join({0: PROMPT, 1: other}, SamplingRow(repetition_penalty=1.8))
    driver.step({0: PROMPT})
    wanted = [int(driver.step({1: tokens}).tokens[0, 0]) for tokens in (other, [-1])]
    blocks = np.array([(0, i, driver.next_block + i) for i in range(4)], np.int32)
    joined = Joined(0, np.array(other, np.int32), len(other), SamplingRow(repetition_penalty=1.8))
    driver.run(Step(driver.seq, left=np.array([0], np.int32), joined=[joined]), blocks)
    driver.done[0] = 0
    assert [int(driver.step({0: tokens}).tokens[0, 0]) for tokens in (other, [-1])] == wanted, "the slot's former owner shows"


def nan_ends_one_request_alone(subject: Subject) -> None:
    """A row whose logits are not numbers fails its request, and no other."""
    if not subject.computes:
        raise NotRun("no model")
    bundle = tiny_llama(max_position_embeddings=TOKENS, tie_word_embeddings=False)
    source = bundle.weights
    assert isinstance(source, MemorySource)
    table = source.tensors["model.embed_tokens.weight"]
    data = table.data.copy()
    data[100] = np.full(64, np.nan, np.float32).view(np.uint8)
    source.tensors["model.embed_tokens.weight"] = HostTensor(table.dtype, table.shape, data)
    good = [t for t in PROMPT if t != 100]
    driver = subject.driver(replace(bundle))
    driver.join({0: good, 1: [*good[:5], 100], 2: good[:20]})
    out = driver.step({0: good, 1: [*good[:5], 100], 2: good[:20]}, want=ALL)
    assert out.status.tolist() == [Status.OK, Status.NAN, Status.OK] and out.count.tolist() == [1, 0, 1], f"status {out.status}, count {out.count}"
    driver.leave(0, 1, 2)
    driver.join({0: good})
    alone = driver.step({0: good}, want=ALL)
    assert out.lp is not None and alone.lp is not None
    subject.same(out.lp[0], alone.lp[0], "logprobs beside a row that failed")


def many_head_rows(subject: Subject) -> None:
    """More head rows in a step than a block of logits holds."""
    driver = subject.driver(blocks=900)
    long = PROMPT * 4
    driver.join({0: long, 1: long})
    whole = driver.score(0, long, 159, 1).prompt_lp[0]
    parts = [driver.score(1, long[first : first + 31], min(31, 159 - first), 1).prompt_lp[0] for first in range(0, 155, 31)]
    subject.same(np.concatenate([p.lp for p in parts]), whole.lp[:155], "prompt logprobs in chunks of 31 rows")


def outputs_belong_to_the_caller(subject: Subject) -> None:
    """A later step does not write into the arrays of an earlier one."""
    driver = subject.driver()
    driver.join({0: PROMPT, 1: PROMPT[:11]})
    out = driver.step({0: PROMPT, 1: PROMPT[:11]}, want=ALL)
    arrays = {name: getattr(out, name) for name in ("count", "tokens", "status", "lp_ids", "lp", "rank")}
    before = {name: array.copy() for name, array in arrays.items()}
    driver.step({0: [-1], 1: [-1]}, want=ALL)
    changed = [name for name, array in arrays.items() if not np.array_equal(array, before[name])]
    assert not changed, f"a later step changed {', '.join(changed)}"


def two_steps_in_flight(subject: Subject) -> None:
    """A step whose input is not known yet is submitted before the one that draws it is collected."""
    driver = subject.driver()
    if driver.executor.limits.max_inflight < 2:
        raise NotRun("one step")
    driver.join({0: PROMPT, 1: PROMPT})
    wanted = [int(driver.step({1: tokens}).tokens[0, 0]) for tokens in (PROMPT, [-1])]
    blocks, tickets = tuple(np.empty((0, 3), np.int32) for _ in driver.executor.kv_needs()), []
    for tokens in (PROMPT, [-1]):
        step = driver.step_of({0: tokens}, samples=driver.last_rows({0: tokens}), new_blocks=blocks)
        driver.seq += 1
        tickets.append(driver.executor.submit(step))
    outs: list[StepOutput] = [driver.executor.collect(ticket) for ticket in tickets]
    assert [int(out.tokens[0, 0]) for out in outs] == wanted and outs[0].seq + 1 == outs[1].seq, "two steps in flight give other tokens"


def a_model_without_rows_to_share(subject: Subject) -> None:
    """Two models in one process do not know of each other."""
    if not subject.computes:
        raise NotRun("no model")
    first, second = subject.driver(), subject.driver(_other_model())
    for driver in (first, second):
        driver.join({0: PROMPT})
    alone: Any = first.step({0: PROMPT}, want=ALL).lp
    other: Any = second.step({0: PROMPT}, want=ALL).lp
    first.join({1: PROMPT})
    again: Any = first.step({1: PROMPT}, want=ALL).lp
    assert not np.array_equal(alone, other), "two models give the same logprobs"
    subject.same(again, alone, "logprobs after another model ran")


def _other_model() -> Any:
    bundle = tiny_llama(max_position_embeddings=TOKENS)
    return bundle_of(bundle.model, seed=9, max_model_len=TOKENS)


def unknown_controls_are_refused(subject: Subject) -> None:
    """A control that it does not know is answered with ok=False and the reason, not raised."""
    executor = subject.executor(tiny_llama(max_position_embeddings=TOKENS))
    reply = executor.control(Control("conformance.unheard_of"))
    assert not reply.ok and reply.error, f"an unknown control was answered {reply}"


CHECKS = (
    it_is_an_executor,
    an_empty_step,
    shapes_and_types,
    logprobs_are_of_the_raw_logits,
    an_unknown_token_is_the_last_one_drawn,
    alone_in_a_batch_and_in_chunks,
    a_chunk_without_a_sample,
    late_masks_open_and_drop,
    a_mask_across_words,
    host_logits_see_and_change_the_rows,
    verified_drafts_give_the_tokens_of_single_steps,
    a_row_that_fails_behind_a_draft,
    prompt_logprobs_across_chunks,
    forks_draw_with_their_own_seed,
    a_preempted_request_goes_on,
    a_slot_is_used_again,
    nan_ends_one_request_alone,
    many_head_rows,
    outputs_belong_to_the_caller,
    two_steps_in_flight,
    a_model_without_rows_to_share,
    unknown_controls_are_refused,
)

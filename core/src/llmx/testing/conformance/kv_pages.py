"""KV pages: blocks in any order, shared, copied, zeroed, used again; what lies beside them stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.executor import Joined, KvOp, SamplingRow, Step, Want
from llmx.testing.conformance.common import PROMPT
from llmx.testing.driver import Driver

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["CHECKS"]

ALL = Want(top_logprobs=20)


def join(driver: Driver, slot: int, tokens: Sequence[int], blocks: Sequence[int], start: int = 0) -> None:
    """A request takes a slot and these blocks, of which the first `start` tokens are valid."""
    table = np.array([(slot, i, block) for i, block in enumerate(blocks)], np.int32)
    driver.run(Step(driver.seq, joined=[Joined(slot, np.array(tokens, np.int32), len(tokens), SamplingRow())]), table)
    driver.done[slot] = start


def answer(driver: Driver, slot: int, tokens: Sequence[int], n: int = 4) -> tuple[list[int], np.ndarray]:
    """The next n tokens of a slot and their logprobs."""
    outs = [driver.step({slot: rows}, want=ALL) for rows in (tokens, *[[-1]] * (n - 1))]
    lps: list[Any] = [out.lp for out in outs]
    return [int(out.tokens[0, 0]) for out in outs], np.concatenate(lps)


def compare(subject: Subject, found: tuple[list[int], np.ndarray], wanted: tuple[list[int], np.ndarray], what: str) -> None:
    """Raise AssertionError unless both answers are the same."""
    assert found[0] == wanted[0], f"{what}: tokens {found[0]}, wanted {wanted[0]}"
    subject.same(found[1], wanted[1], f"{what}: logprobs")


def ops(driver: Driver, *rows: tuple[KvOp, int, int]) -> None:
    """A step of page operations (kind, source, destination), in every group."""
    groups = range(len(driver.executor.kv_needs()))
    driver.run(Step(driver.seq, kv_ops=np.array([(kind, group, src, dst) for kind, src, dst in rows for group in groups], np.int32)))


def blocks_in_any_order(subject: Subject) -> None:
    """Which blocks a request has, and in which order, does not matter."""
    driver = subject.driver()
    join(driver, 0, PROMPT, range(1, 6))
    wanted = answer(driver, 0, PROMPT)
    for slot, blocks in ((1, (50, 40, 30, 20, 10)), (2, (7, 200, 8, 199, 9))):
        join(driver, slot, PROMPT, blocks)
        compare(subject, answer(driver, slot, PROMPT), wanted, f"blocks {blocks}")


def lengths_around_a_block(subject: Subject) -> None:
    """1, 2, 15, 16, 17, 31, 32 and 33 tokens, whole and in two chunks."""
    driver = subject.driver()
    for slot, length in enumerate((1, 2, 15, 16, 17, 31, 32, 33)):
        prompt = PROMPT[:length]
        one, two = 2 * slot, 2 * slot + 1
        driver.join({one: prompt, two: prompt})
        wanted = [int(driver.step({one: rows}).tokens[0, 0]) for rows in (prompt, [-1], [-1])]
        if length > 1:
            driver.step({two: prompt[: length // 2]}, sample=[])
        found = [int(driver.step({two: rows}).tokens[0, 0]) for rows in (prompt[length // 2 :], [-1], [-1])]
        assert found == wanted, f"{length} tokens: {found} in two chunks, {wanted} in one"


def shared_blocks(subject: Subject) -> None:
    """A prefix hit: another request's first blocks stand in the table, only the rest is computed."""
    driver = subject.driver()
    join(driver, 0, PROMPT, range(1, 6))
    wanted = answer(driver, 0, PROMPT)
    join(driver, 1, PROMPT, (1, 2, 60, 61, 62), start=32)
    compare(subject, answer(driver, 1, PROMPT[32:]), wanted, "two shared blocks")


def copied_blocks(subject: Subject) -> None:
    """COPY of every block, in the order written, also through a third place."""
    driver = subject.driver()
    join(driver, 0, PROMPT, range(1, 6))
    wanted = answer(driver, 0, PROMPT)
    ops(driver, (KvOp.COPY, 1, 90), (KvOp.COPY, 90, 91), (KvOp.ZERO, 0, 90), (KvOp.COPY, 2, 92))
    join(driver, 1, PROMPT, (91, 92, 93, 94, 95), start=32)
    compare(subject, answer(driver, 1, PROMPT[32:]), wanted, "copied blocks")


def neighbours_stay(subject: Subject) -> None:
    """ZERO and COPY of the blocks before and behind leave a block as it is."""
    driver = subject.driver()
    join(driver, 0, PROMPT, (11, 21, 31, 41, 51))
    join(driver, 1, PROMPT, (111, 121, 131, 141, 151))
    wanted = answer(driver, 0, PROMPT, 4)
    driver.step({1: PROMPT}, sample=[])
    beside = [block + offset for block in (111, 121, 131) for offset in (-1, 1)]
    ops(driver, *((KvOp.ZERO, 0, block) for block in beside), *((KvOp.COPY, 11, block) for block in beside))
    driver.leave(1)
    join(driver, 2, PROMPT, (111, 121, 160, 161, 162), start=32)
    compare(subject, answer(driver, 2, PROMPT[32:]), wanted, "after work on the blocks beside")


def blocks_of_a_former_owner(subject: Subject) -> None:
    """Blocks that were zeroed and given to another request hold nothing of the first."""
    driver = subject.driver()
    other = PROMPT[::-1]
    join(driver, 0, PROMPT, range(1, 6))
    wanted = answer(driver, 0, PROMPT)
    join(driver, 1, other, range(71, 76))
    answer(driver, 1, other)
    driver.leave(1)
    ops(driver, *((KvOp.ZERO, 0, block) for block in range(71, 76)))
    join(driver, 2, PROMPT, range(71, 76))
    compare(subject, answer(driver, 2, PROMPT), wanted, "in another's old blocks")


def requests_do_not_mix(subject: Subject) -> None:
    """Interleaved blocks of eight requests of different lengths, decoded together."""
    driver = subject.driver()
    driver.next_block = 300
    prompts = {slot: PROMPT[slot : slot + 3 + 5 * slot] for slot in range(8)}
    for slot, prompt in prompts.items():
        join(driver, slot, prompt, range(1 + slot, 1 + slot + 8 * 4, 8))
    driver.step(prompts)
    together = [driver.step({slot: [-1] for slot in prompts}, want=ALL) for _ in range(3)]
    for slot, prompt in prompts.items():
        driver.leave(slot)
        driver.join({slot: prompt})
        wanted = answer(driver, slot, prompt)
        lps: list[Any] = [out.lp for out in together]
        found = [int(out.tokens[slot, 0]) for out in together]
        compare(subject, (found, np.concatenate([lp[slot : slot + 1] for lp in lps])), (wanted[0][1:], wanted[1][1:]), f"request {slot} of eight")


CHECKS = (
    blocks_in_any_order,
    lengths_around_a_block,
    shared_blocks,
    copied_blocks,
    neighbours_stay,
    blocks_of_a_former_owner,
    requests_do_not_mix,
)

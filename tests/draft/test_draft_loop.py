"""The loop of drafts on the device, beside the null executor: its pages are checked row by row, under preemption, cache hits, forks and rejected guesses."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from llmx.batch import KvOp, Step
from llmx.draft.device import DeviceProposer
from llmx.executor.base import Ticket
from llmx.executor.draft_loop import DraftLoop
from llmx.executor.draft_shape import DraftRows, DraftShape
from llmx.executor.null_pages import history_hash
from llmx.executor.null_sampling import NullModel
from llmx.sched.drafting import Drafting
from tests.sched.harness import FULL, SLIDING, Harness, alone

K = 5


class OnDevice:
    """A drafter whose Programs are there already."""

    def join(self) -> None:
        raise AssertionError("nothing is loaded here")

    def begin(self, tokens: Sequence[int], *, private: bool) -> DeviceProposer:
        return DeviceProposer(tokens)


class Witness:
    """Pages that hold tokens. A row must find all tokens before it in the pages that it may see, and guesses the null model's favourite, or not."""

    def __init__(self, harness: Harness, right: float) -> None:
        self.model: NullModel = harness.executor.model
        self.right, self.rows, self.runs = right, 0, 0
        plan = harness.engine.kv.plan
        names = [group.need.states[0] for group in plan.groups]
        self.loop = DraftLoop(plan, DraftShape(("draft",), tuple(names), 0, 1), harness.executor.limits.max_tokens)
        self.windows = [group.need.spec.window if group.need.spec.kind == "sliding" else None for group in plan.groups]
        self.pages = [np.full((group.num_blocks, 16, 2), -1, np.int64) for group in plan.groups]
        submit, collect = harness.executor.submit, harness.executor.collect

        def submitted(step: Step) -> Ticket:
            self.loop.change(step)
            for op, group, src, dst in step.kv_ops.tolist():
                self.pages[group][dst] = self.pages[group][src] if op == KvOp.COPY else -1
            return submit(step)

        def collected(ticket: Ticket):  # type: ignore[no-untyped-def]
            out, step = collect(ticket), ticket.payload.step
            self.loop.draft(step, out, self.forward)
            return out

        harness.executor.submit, harness.executor.collect = submitted, collected  # type: ignore[method-assign]

    def forward(self, rows: DraftRows) -> np.ndarray:
        first, guesses, heads = 0, [], set(rows.head.tolist())
        assert len(rows.tokens) <= self.loop._max_tokens
        for slot, q, start in zip(rows.slot.tolist(), rows.q.tolist(), rows.start.tolist(), strict=True):
            for group, pages in enumerate(self.pages):
                table = self.loop._tables[group][slot]
                for at in range(q):
                    pages[table[(start + at) // 16], (start + at) % 16] = start + at, rows.tokens[first + at]
            sequence = []
            for position in range(start + q):
                window = self.windows[-1]
                block = self.loop._tables[0][slot][position // 16]
                held, token = self.pages[0][block, position % 16]
                assert block > 0 and held == position, f"slot {slot}: position {position} is not there"
                sequence.append(int(token))
                if window is not None and position > start - window:
                    assert tuple(self.pages[-1][self.loop._tables[len(self.pages) - 1][slot][position // 16], position % 16]) == (held, token)
            known = self.loop._kept[slot].tokens
            assert sequence[: len(known)] == known[: len(sequence)], f"slot {slot}: the pages hold what the request does not say"
            for at in range(q):
                if first + at in heads:
                    seen = sequence[: start + at + 1]
                    right = history_hash(seen, 17) % 1000 < 1000 * self.right
                    guesses.append((self.model.favourite(seen) + (not right)) % 64)
            first += q
        self.rows, self.runs = self.rows + len(rows.tokens), self.runs + 1
        return np.array(guesses, np.int32)


def _harness(groups: list, right: float, **options: object) -> tuple[Harness, Witness]:  # type: ignore[type-arg]
    harness = Harness(groups, nan=False, **options)  # type: ignore[arg-type]
    harness.engine.scheduler.drafting = Drafting(OnDevice(), K, harness.engine.kv)
    harness.engine.scheduler.drafting.fixed = True
    return harness, Witness(harness, right)


@pytest.mark.parametrize("groups", [[FULL], [FULL, SLIDING]], ids=["full", "hybrid"])
@pytest.mark.parametrize("seed", range(5))
def test_random_load(groups: list, seed: int) -> None:  # type: ignore[type-arg]
    rng = random.Random(seed)
    harness, witness = _harness(
        groups, rng.choice([0.3, 0.8, 1.0]), num_blocks=rng.choice([14, 24, 60]), slots=rng.choice([3, 8]), max_tokens=rng.choice([16, 64])
    )
    drafting = harness.engine.scheduler.drafting
    assert drafting is not None
    shared, count = [rng.randrange(4, 62) for _ in range(48)], 0
    for _ in range(150):
        move = rng.random()
        if move < 0.2:
            prompt = shared[: rng.choice([0, 16, 20, 48])] + [rng.randrange(4, 62) for _ in range(rng.randrange(1, 40))]
            harness.add(f"r{count}", prompt, max_tokens=rng.randrange(5, 40), n=rng.choice([1, 1, 2, 3]), seed=count, temperature=rng.choice([0.0, 1.0]))
            count += 1
        elif move < 0.23 and harness.engine._requests:
            harness.abort(rng.choice(list(harness.engine._requests)), rng.choice([-1, 0, 1]))
        else:
            drafting.enabled = rng.random() < 0.8
            harness.step()
    harness.run()
    for (name, index), tokens in harness.answers.items():
        prompt, params = harness.added[name]
        expected = alone(harness, prompt, params, index)
        assert tokens == (expected[: len(tokens)] if harness.ends[name, index] == "abort" else expected)
    assert witness.runs > 20 and harness.engine.stats().accepted_tokens > 0


def test_rows_are_computed_once() -> None:
    """Right guesses: of each token one row, in chunks, and none of what the prefix cache has."""
    harness, witness = _harness([FULL], 1.0, max_tokens=16)
    prompt = list(range(4, 44))
    harness.add("a", prompt, max_tokens=31, ignore_eos=True)
    harness.run()
    assert harness.steps == 3 + 5  # chunks of 16, 16 and 8 with the first token, then six tokens in each
    assert witness.rows <= 40 + 31 + 3 * K  # the last guesses are for nobody, and two blocks are given back with guesses in them
    before = witness.rows
    harness.add("b", [*prompt, *harness.answers["a", 0]], max_tokens=7, ignore_eos=True)
    harness.run()
    assert witness.rows - before <= 71 - 64 + 7 + 2 * K


def test_a_drafter_that_was_left_out_catches_up() -> None:
    harness, witness = _harness([FULL], 1.0, max_tokens=16)
    drafting = harness.engine.scheduler.drafting
    assert drafting is not None
    harness.add("a", list(range(4, 24)), max_tokens=60, ignore_eos=True)
    drafting.enabled = False
    for _ in range(30):
        harness.step()
    assert not witness.rows
    drafting.enabled = True
    while not harness.engine.stats().accepted_tokens:
        harness.step()
    assert harness.steps <= 30 + 5 and witness.rows >= 49  # sixteen rows in a step

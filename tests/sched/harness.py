"""A small engine on the null executor, with every invariant checked after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmx.config import EngineConfig
from llmx.draft.start import ChosenDrafter
from llmx.engine.engine import Engine
from llmx.engine.messages import Abort, Add, SeqOutput
from llmx.executor.null import NullExecutor
from llmx.executor.null_pages import history_hash
from llmx.executor.null_sampling import NullModel
from llmx.kv.groups import plan_kv
from llmx.kv.spec import GroupNeed, KVSpec
from llmx.request import Request
from llmx.sampling_params import SamplingParams

FULL = GroupNeed(KVSpec("full", 1, 8, 8), ("full",), 16, 128, "i64")
SLIDING = GroupNeed(KVSpec("sliding", 1, 8, 8, window=24), ("window",), 16, 128, "i64")
STATE = GroupNeed(KVSpec("state", state=((1,),)), ("state",), 1, 8, "i64")
EOS = 3


class Guesses:
    """A drafter that knows the null model: each token is its favourite with the chance `right`, by a hash of the history."""

    def __init__(self, model: NullModel, right: float) -> None:
        self.model, self.right, self.open = model, right, 0

    def begin(self, tokens: Sequence[int], *, private: bool) -> Guesser:
        self.open += 1
        return Guesser(self, tokens)


class Guesser:
    def __init__(self, owner: Guesses, tokens: Sequence[int]) -> None:
        self._owner, self._tokens = owner, tokens

    def propose(self, limit: int) -> tuple[list[int], int] | None:
        history = list(self._tokens)
        for _ in range(limit):
            guess = self._owner.model.favourite(history)
            right = history_hash(history, 17) % 1000 < 1000 * self._owner.right
            history.append(guess if right else (guess + 1) % 64)
        return history[len(self._tokens) :], 4

    def close(self) -> None:
        self._owner.open -= 1


class Harness:
    """Adds, aborts and steps; collects every answer's tokens; `check` after each move."""

    def __init__(
        self,
        needs: list[GroupNeed],
        *,
        num_blocks: int = 24,
        slots: int = 8,
        max_tokens: int = 64,
        max_inflight: int = 1,
        max_len: int = 160,
        **changes: object,
    ) -> None:
        nan_tokens = frozenset({63} if changes.get("nan", True) else ())
        self.executor = NullExecutor(needs, vocab_size=64, max_tokens=max_tokens, max_requests=slots, max_inflight=max_inflight, nan_tokens=nan_tokens)
        plan = plan_kv(needs, kv_bytes=0, max_requests=slots, max_model_len=max_len, max_chunk=max_tokens, num_blocks=num_blocks)
        self.executor.kv_allocate(plan)
        config = EngineConfig()
        config = replace(config, cache=replace(config.cache, prefix_caching=bool(changes.get("prefix_caching", True))))
        config = replace(config, scheduler=replace(config.scheduler, policy=str(changes.get("policy", "fcfs"))))
        guesses = changes.get("drafts")
        drafter = ChosenDrafter("guesses", Guesses(self.executor.model, float(guesses)), 5, {}) if guesses is not None else None  # type: ignore[arg-type]
        self.engine = Engine(config, self.executor, plan, eos_ids=(EOS,), vocab_size=64, numerics="test", drafter=drafter)
        if self.engine.scheduler.drafting is not None:
            self.engine.scheduler.drafting.fixed = True  # every guess is taken whole, whatever it costs
        self.answers: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], str] = {}
        self.news: list[SeqOutput] = []
        self.added: dict[str, tuple[list[int], SamplingParams]] = {}
        self.steps = 0

    def add(self, name: str, prompt: list[int], *, priority: int = 0, **params: object) -> None:
        options = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **params})  # type: ignore[arg-type]
        self.engine.add(Add(name, prompt, options, priority))
        self.added[name] = (prompt, options)
        for index in range(options.n):
            self.answers[name, index] = []

    def abort(self, name: str, index: int = -1) -> None:
        self._take(self.engine.abort(Abort(name, index)))
        self.check()

    def step(self) -> None:
        self.steps += 1
        self._take(self.engine.step())
        self.check()

    def run(self, limit: int = 3000) -> None:
        """Step until all is done; a schedule that makes no progress fails here."""
        for _ in range(limit):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "the engine still has work after many steps"
        assert self.engine.kv.blocks_held == 0, "blocks are held although nothing runs"

    def _take(self, items: list[SeqOutput]) -> None:
        self.news += items
        for item in items:
            assert (item.id, item.index) not in self.ends, "news after the end"
            self.answers[item.id, item.index] += item.tokens
            if item.finish_reason is not None:
                self.ends[item.id, item.index] = item.finish_reason

    def live(self) -> list[Request]:
        return [request for answers in self.engine._requests.values() for request in answers.values()]

    def check(self) -> None:
        """Blocks, slots and counters agree, and no slot is in two hands."""
        scheduler = self.engine.scheduler
        self.engine.kv.check_integrity(self.live())
        slots = [request.slot for request in self.live() if request.slot >= 0]
        assert len(slots) == len(set(slots)), f"a slot has two owners: {slots}"
        assert sorted(slots + scheduler._free_slots) == list(range(self.executor.limits.max_requests)), "slots lost or doubled"
        for request in scheduler.running:
            assert 0 <= request.num_computed <= request.num_scheduled_total
        if not self.engine._in_flight:
            known = {request.slot: request.tokens for request in scheduler.running}
            actual = {slot: kept.view.history for slot, kept in self.executor._state.slots.items() if slot in known}
            assert actual == {slot: tokens for slot, tokens in known.items() if slot in actual}, "the executor's histories differ"
            assert set(known) <= set(actual) | {request.slot for request in scheduler.running if request.num_computed == 0}


def alone(harness: Harness, prompt: list[int], params: SamplingParams, index: int = 0) -> list[int]:
    """The answer as the null model gives it without engine, batch, pages or slots: the value every schedule must reach."""
    from llmx.sample.params_rows import row_from
    from llmx.sample.reference import sample

    history, row = list(prompt), row_from(params, (params.seed or 0) + index, (EOS,))
    limit = min(params.max_tokens or 0, harness.engine.max_model_len - len(prompt))
    while len(history) - len(prompt) < limit:
        drawn = sample(harness.executor.model.logits(history, len(prompt)), row, np.array(history, np.int32), len(prompt))
        if history[-1] in harness.executor.model.nan_tokens:
            break
        history.append(drawn.token)
        generated = len(history) - len(prompt)
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        if drawn.token in stops and generated > params.min_tokens:
            break
    return history[len(prompt) :]

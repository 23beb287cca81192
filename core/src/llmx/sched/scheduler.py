"""Scheduler: queues in, Steps out; StepOutputs in, tokens out.

Continuous batching with chunked prefill inside one token budget. Those who run go first, decode rows before chunks; then
waiting requests are admitted. When blocks run out the request that the policy serves last is preempted.
Up to `max_inflight` steps are submitted and not collected: a token that is not known yet is sent as -1.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from llmx.batch import Status, StepOutput
from llmx.kv.manager import KVManager
from llmx.request import Request, RequestState
from llmx.sched.admission import Admission
from llmx.sched.budget import TokenBudget
from llmx.sched.drafting import Drafting
from llmx.sched.emission import Emission
from llmx.sched.policy import Waiting, order_key
from llmx.sched.pooled_rows import take_pooled
from llmx.sched.preempt import choose_victim
from llmx.sched.repeat import Repeat
from llmx.sched.scheduled import Scheduled
from llmx.sched.step_builder import StepBuilder

__all__ = ["Scheduler"]


class Scheduler:
    """All requests of one engine. One thread calls it."""

    def __init__(
        self,
        kv: KVManager,
        *,
        max_tokens: int,
        max_requests: int,
        policy: str = "fcfs",
        interactive: bool = True,
        drafting: Drafting | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.kv, self.drafting = kv, drafting
        self.budget = TokenBudget(max_tokens, interactive=interactive)
        self.admission = Admission(kv)
        self._repeat = Repeat(kv)
        self._key = order_key(policy)
        self._clock = clock
        self.waiting = Waiting(self._key)
        self.running: dict[Request, None] = {}  # in order of admission
        self._free_slots = list(range(max_requests - 1, -1, -1))
        self._left: list[int] = []
        self._seq = 0
        self.num_preemptions = 0

    # -- queue ---------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Enter a request; its children are HELD until its prompt is computed."""
        for child in request.children:
            child.state, child.parent = RequestState.HELD, request
        request.arrival_s = self._clock()
        self.waiting.add(request)

    def finish(self, request: Request, reason: str, stop_reason: int | None = None) -> None:
        """End a request now, whatever it is doing. Rows in flight are computed and ignored. Idempotent."""
        if request.finished:
            return
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self._leave(request)
        else:
            self._disown(request)
        request.state = RequestState.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason
        if self.drafting is not None:
            self.drafting.ended(request)
        if request.children:
            self._adopt(request)

    def _disown(self, child: Request) -> None:
        """A held child ends before it was forked: its slot is reserved at most, nobody joined it."""
        if child.parent is not None:
            child.parent.children.remove(child)
            child.parent = None
        if child.slot >= 0:
            self._free_slots.append(child.slot)
            child.slot = -1

    def _adopt(self, request: Request) -> None:
        """The parent of held children ended before they were forked: the first living child takes its place."""
        alive = list(request.children)
        for child in alive:
            self._disown(child)
        if alive:
            heir, heir.children = alive[0], alive[1:]
            for child in heir.children:
                child.parent = heir
            heir.state = RequestState.WAITING
            self.waiting.add(heir)

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs."""
        return bool(self.running) or len(self.waiting) > 0

    # -- schedule ------------------------------------------------------------------------------------------------------

    def schedule(self) -> Scheduled | None:
        """The next step, or None when nothing can be done now. Counters move on as if the step were done."""
        if (not len(self.waiting) or not self._free_slots) and self.drafting is None and (again := self._repeat.next(self._seq)) is not None:
            self._seq += 1
            self.admission.note_step()
            return again
        build = StepBuilder()
        decoding = [request for request in self.running if not request.in_prefill and self._next_rows(request)]
        for request in decoding if self.drafting is None else self.drafting.ready(decoding):
            if build.num_tokens == self.budget.max_tokens:
                break
            if request in self.running and self._make_room(request, request.num_computed + 1, build):
                build.add(request, 1)
        room = self.budget.prefill_tokens(build.num_tokens)
        for request in [request for request in self.running if request.in_prefill]:
            q = min(self._next_rows(request), room)
            if q and request in self.running and self._make_room(request, request.num_computed + q, build):
                build.add(request, q)
                room -= q
        self._admit(build, room)
        if self.drafting is not None:
            self.drafting.add_to(build, self.budget.max_tokens - build.num_tokens)
        self.admission.note_step()
        if not build.rows and not self._left:
            return None
        return self._submit(build)

    def _next_rows(self, request: Request) -> int:
        """Token rows that the request still has to compute."""
        rows = request.num_scheduled_total - request.num_computed
        if not request.wants_token and request.num_computed >= request.prompt_len:
            return 0  # the last token needs no KV
        return rows

    def _make_room(self, request: Request, num_tokens: int, build: StepBuilder) -> bool:
        """Get the blocks for the request's first num_tokens tokens, preempting others; False: it must wait or was preempted itself."""
        while not self.kv.extend(request, num_tokens):
            victim = choose_victim(self.running, build.rows, self._key)
            if victim is None:
                return False
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks and slot; it waits again, with its tokens."""
        self._leave(request)
        for child in request.children:
            self._free_slots.append(child.slot)
            child.slot = -1
        request.state = RequestState.WAITING
        self.waiting.add(request)
        self.num_preemptions += 1
        request.num_preempted += 1
        self.admission.note_preemption()

    def _leave(self, request: Request) -> None:
        del self.running[request]
        self._repeat.forget()
        self.kv.free(request)
        self._left.append(request.slot)
        self._free_slots.append(request.slot)
        request.slot = -1

    def _admit(self, build: StepBuilder, room: int) -> None:
        passed: list[Request] = []
        for request in self.admission.candidates(self.waiting):
            if room <= 0 or len(self._free_slots) < 1 + len(request.children):
                break
            if request.steps_in_flight or request.num_pending:
                continue  # a step from before its preemption is still to come
            hit = self.kv.look_up(request)
            if not self.admission.has_room(request, hit, self.running):
                passed.append(request)
                continue
            q = min(len(request.tokens) - hit, room)
            if request.whole_prompt and q < len(request.tokens):
                break  # alone in a step it has room: nobody may pass it
            self._take_slot(request)
            self.kv.admit(request, hit)
            if not self.kv.extend(request, hit + q):
                self._give_back_slot(request)
                passed.append(request)
                continue
            self.waiting.remove(request)
            request.state = RequestState.RUNNING
            request.started_s = request.started_s or self._clock()
            self.running[request] = None
            build.join(request)
            build.add(request, q)
            room -= q
            for older in passed:
                older.times_passed += 1

    def _take_slot(self, request: Request) -> None:
        for one in (request, *request.children):
            one.slot = self._free_slots.pop()

    def _give_back_slot(self, request: Request) -> None:
        self.kv.free(request)
        for one in (request, *request.children):
            self._free_slots.append(one.slot)
            one.slot = -1

    def _submit(self, build: StepBuilder) -> Scheduled:
        for request, q in build.rows.items():
            if request.children and request.num_computed + q == request.num_scheduled_total:
                for child in request.children:
                    build.join(child, fork_of=request.slot)
        left, self._left = self._left, []
        new_blocks, kv_ops = self.kv.take_changes()
        scheduled = build.finish(self._seq, left, new_blocks, kv_ops)
        self._seq += 1
        self._advance(scheduled)
        self._repeat.remember(scheduled, self.running)
        return scheduled

    def _advance(self, scheduled: Scheduled) -> None:
        """Move the counters to where they will be once the step is done."""
        for request, end in scheduled.rows:
            request.num_computed = end
            request.steps_in_flight += 1
            if request.params.prompt_logprobs is not None:
                request.num_scored = max(request.num_scored, min(end, request.prompt_len - 1))
        for request in scheduled.samples:
            request.num_pending += 1
            if request.state is RequestState.HELD:
                request.state = RequestState.RUNNING
                self.running[request] = None
        for request, _ in scheduled.rows:
            if request.children and request.num_pending:
                for child in request.children:
                    self.kv.fork(request, child)
                    child.num_computed, child.parent = request.num_computed, None
                request.children = []

    # -- update --------------------------------------------------------------------------------------------------------

    def update(self, scheduled: Scheduled, out: StepOutput) -> list[Emission]:
        """Take in the result of the oldest submitted step: tokens, ends, full blocks."""
        self.budget.observe(scheduled.num_decoding, scheduled.num_prefill, float(out.t_us[0] + out.t_us[1]))
        news: dict[Request, Emission] = {}
        for request, lp in zip(scheduled.scores, out.prompt_lp, strict=True):
            if not request.finished:
                news[request] = Emission(request, [], prompt_logprobs=lp)
        take_pooled(scheduled.pooled, out, news, self.finish)
        for request in self._fail_rows(scheduled, out):
            news.setdefault(request, Emission(request, []))
        block = self.kv.block_tokens
        for request, end in scheduled.rows:
            request.steps_in_flight -= 1
            if request.state is RequestState.RUNNING:
                if end // block != request.num_published:
                    self.kv.accept(request, end)
                if request.max_new == 0 and request.num_computed >= request.prompt_len:
                    self.finish(request, "length" if request.pooling is None else "stop")
                    news.setdefault(request, Emission(request, []))
        counts, tokens = out.count.tolist(), out.tokens.tolist()
        for index, request in enumerate(scheduled.samples):
            request.num_pending -= 1
            if not request.finished:
                emission = news.setdefault(request, Emission(request, []))
                self._take_tokens(emission, index, tokens[index][: counts[index]], out)
        return list(news.values())

    def _fail_rows(self, scheduled: Scheduled, out: StepOutput) -> list[Request]:
        failed: list[Request] = []
        fates = out.status.tolist()
        if not any(fates):
            return failed
        for (request, _), status in zip(scheduled.rows, fates, strict=True):
            if status != Status.OK and not request.finished:
                self.finish(request, "error", status)
                failed.append(request)
        return failed

    def _take_tokens(self, emission: Emission, index: int, tokens: list[int], out: StepOutput) -> None:
        request, taken, reason = emission.request, emission.tokens, None
        for token in tokens:
            taken.append(token)
            request.tokens.append(token)
            if (reason := request.end_after(token)) is not None:
                break
        if self.drafting is not None:
            self.drafting.settle(request, len(taken), None if out.drafts is None else out.drafts[index])
        if reason is not None:
            self.finish(request, reason, taken[-1] if reason == "stop" else None)
        if not tokens:
            self.finish(request, "error", int(Status.MASK_DEAD))
        if out.lp is not None and out.lp_ids is not None and out.rank is not None and request.params.logprobs is not None:
            n = len(taken)
            emission.logprobs = (out.lp_ids[index, :n], out.lp[index, :n], out.rank[index, :n])

    @property
    def num_queued(self) -> int:
        """Waiting requests beyond those that free slots could take at once."""
        return max(len(self.waiting) - len(self._free_slots), 0)

    @property
    def queue_delay_s(self) -> float:
        """Age of the request that has waited longest, in seconds."""
        oldest = self.waiting.oldest_s()
        return 0.0 if oldest is None else max(self._clock() - oldest, 0.0)

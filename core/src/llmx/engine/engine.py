"""Engine: add, abort, step. Owns the scheduler, the KV manager and the executor of one model; knows no text.

`step` does: schedule, submit (until the executor has max_inflight steps), collect the oldest, update. One thread calls it.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Any

import numpy as np

from llmx.batch import Status
from llmx.config import EngineConfig
from llmx.draft.start import ChosenDrafter
from llmx.engine.accounting import Accounting
from llmx.engine.constrain import constrain
from llmx.engine.controls import Controls
from llmx.engine.masks import LateMasks
from llmx.engine.messages import Abort, Add, SeqOutput
from llmx.engine.outputs import NOTHING_ALLOWED, EngineStats
from llmx.engine.pooling import Pooler
from llmx.engine.processors import Processors
from llmx.errors import PromptTooLong, QueueTimeout, RequestError
from llmx.executor.base import Executor, Ticket
from llmx.kv.manager import KVManager
from llmx.kv.spec import KVPlan
from llmx.lora.off import NoAdapters
from llmx.pooling_params import PoolingConfig
from llmx.request import Request
from llmx.sample.params_rows import row_from
from llmx.sched.drafting import Drafting
from llmx.sched.emission import Emission
from llmx.sched.queue_limits import QueueLimits
from llmx.sched.scheduled import Scheduled
from llmx.sched.scheduler import Scheduler
from llmx.structured.manager import Grammars, ReadyGrammar

__all__ = ["Engine"]

_FAILURES = {
    int(Status.NAN): "the model produced NaN or infinite logits for this request",
    int(Status.MASK_DEAD): NOTHING_ALLOWED,
    int(Status.KV_LOAD_FAILED): "KV pages of this request could not be loaded",
}


class Engine:
    """Continuous batching of one model. Requests are known by (id, index of the answer)."""

    def __init__(
        self, config: EngineConfig, executor: Executor, kv_plan: KVPlan, grammars: Grammars | None = None,
        *, pooling: PoolingConfig | None = None, eos_ids: tuple[int, ...], vocab_size: int, numerics: str, drafter: ChosenDrafter | None = None,
    ) -> None:  # fmt: skip
        limits = executor.limits
        self.executor = executor
        self.pooler = Pooler(pooling, limits.max_tokens)
        self.kv = KVManager(kv_plan, max_chunk=limits.max_tokens, numerics=numerics, prefix_caching=self.pooler.caching(config))
        self.scheduler = Scheduler(
            self.kv,
            max_tokens=limits.max_tokens,
            max_requests=limits.max_requests,
            policy=config.scheduler.policy,
            interactive=config.scheduler.interactive,
            drafting=None if drafter is None else Drafting(drafter.drafter, drafter.num_tokens, self.kv),
        )
        self.max_model_len = kv_plan.max_model_len
        self.vocab_size = vocab_size
        self.grammars, self.masks, self.processors, self.adapters = grammars, LateMasks(vocab_size, busy=limits.has("host_busy")), Processors(), NoAdapters()
        self._eos_ids = eos_ids
        self.queue = QueueLimits(config.scheduler, self.scheduler)
        self._seeds = np.random.default_rng(config.model.seed)
        self._requests: dict[str, dict[int, Request]] = {}
        self._in_flight: deque[tuple[Ticket, Scheduled]] = deque()
        self._arrivals = 0
        self.accounting = Accounting(self.kv, self.scheduler)
        self.controls = Controls(self)

    # -- requests ------------------------------------------------------------------------------------------------------

    def add(self, message: Add, ready: ReadyGrammar | None = None) -> None:
        """Queue a request. ready: its grammar, if it is compiled. Raises RequestError (PromptTooLong, QueueFull); then nothing changed."""
        self._check(message)
        params, constraints = constrain(message.params, self.grammars, ready, self._eos_ids, self.processors, self.executor.limits)
        base = params.seed if params.seed is not None else int(self._seeds.integers(2**63))
        room = self.max_model_len - len(message.prompt)
        max_new = room if params.max_tokens is None else min(params.max_tokens, room)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(self._eos_ids))
        self._arrivals += 1
        answers = [
            Request(
                id=message.id,
                index=index,
                tokens=list(message.prompt),
                prompt_len=len(message.prompt),
                params=params,
                row=row_from(params, base + index, self._eos_ids),
                max_new=max_new,
                stop_ids=stop_ids,
                arrival=self._arrivals,
                priority=message.priority or params.priority,
                cache_salt=message.cache_salt.encode(),
                constraint=constraints[index],
                **self.pooler.fields(message),
                **self.adapters.fields(message),
            )
            for index in range(params.n)
        ]
        self._requests[message.id] = {request.index: request for request in answers}
        self.accounting.stats.prompt_tokens += len(message.prompt)
        # Answers that start together share one computed prompt. Without a token there is nothing to fork; more than there are slots wait.
        together = 1 if max_new == 0 else self.executor.limits.max_requests
        for first in range(0, params.n, together):
            answers[first].children = answers[first + 1 : first + together]
            self.scheduler.add(answers[first])

    def _check(self, message: Add) -> None:
        length, params = len(message.prompt), message.params
        if message.id in self._requests:
            raise RequestError(f"a request with id {message.id!r} is running already", field="request_id")
        if length == 0:
            raise RequestError("the prompt has no tokens: give at least one", field="prompt")
        self.pooler.check(message)
        self.adapters.check(message)
        self.queue.check(length)
        least = 0 if params.max_tokens == 0 else 1
        if length + least > self.max_model_len:
            why = f"the prompt has {length} tokens, but the model takes {self.max_model_len} with the answer"
            raise PromptTooLong(f"{why}: shorten it by {length + least - self.max_model_len}", field="prompt")
        low, high = min(message.prompt), max(message.prompt)
        if low < 0 or high >= self.vocab_size:
            raise RequestError(f"the prompt holds token id {low if low < 0 else high}, but the vocabulary is 0..{self.vocab_size - 1}", field="prompt")
        params.check_vocabulary(self.vocab_size)

    def abort(self, message: Abort) -> list[SeqOutput]:
        """End a request, or one of its answers. Unknown ids are fine: it may have ended just now."""
        answers = self._requests.get(message.id, {})
        chosen = list(answers.values()) if message.index < 0 else [answers[message.index]] if message.index in answers else []
        outputs = []
        for request in reversed(chosen):  # children first, so that none is made a parent on the way
            self.scheduler.finish(request, message.reason)
            outputs.append(self._close(request, SeqOutput(request.id, request.index, [])))
        return outputs

    def expire(self) -> list[tuple[str, RequestError]]:
        """End the requests that have waited too long for their first step, or can never start: (id, error) of each."""
        ended = {request.id: error for request, error in self.queue.overdue()}
        for name, error in ended.items():
            self.abort(Abort(name, reason="timeout" if isinstance(error, QueueTimeout) else "error"))
        return list(ended.items())

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return (self.scheduler.has_work and not self.controls.paused) or bool(self._in_flight)

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self) -> list[SeqOutput]:
        """One turn; the news of each request that got some."""
        began = perf_counter_ns()
        while not self._in_flight or (self._in_flight[-1][0].more and len(self._in_flight) < self.executor.limits.max_inflight):
            if self.controls.paused or (scheduled := self.scheduler.schedule()) is None:
                break
            if scheduled.step.late and not self._in_flight:
                self.masks.begin(scheduled)
            self._in_flight.append((self.executor.submit(scheduled.step), scheduled))
        if not self._in_flight:
            return []
        ticket, scheduled = self._in_flight.popleft()
        if scheduled.step.late:
            self.executor.release(ticket, self.masks.late(scheduled))
        out = self.executor.collect(ticket)
        outputs = [self._news(emission) for emission in self.scheduler.update(scheduled, out)]
        self.accounting.stepped(scheduled, out, perf_counter_ns() - began)
        return outputs

    def _news(self, emission: Emission) -> SeqOutput:
        request = emission.request
        news = SeqOutput(request.id, request.index, emission.tokens, num_cached=request.num_cached, started_s=request.started_s)
        news.preemptions, news.drafted, news.accepted = request.num_preempted, request.num_drafted, request.num_accepted
        self.accounting.stats.generation_tokens += len(emission.tokens)
        if emission.logprobs is not None:
            news.lp = _rows(*emission.logprobs)
        self.pooler.tell(emission, news)
        if emission.prompt_logprobs is not None:
            news.prompt_lp = _rows(emission.prompt_logprobs.ids, emission.prompt_logprobs.lp, emission.prompt_logprobs.rank)
        return self._close(request, news) if request.finished else news

    def _close(self, request: Request, news: SeqOutput) -> SeqOutput:
        """Write the end into the news and forget the answer."""
        answers = self._requests.get(request.id)
        if answers is None or answers.pop(request.index, None) is None:
            return news
        if not answers:
            del self._requests[request.id]
            self.pooler.forget(request.id)
        news.finish_reason = request.finish_reason
        self.accounting.ended(request)
        if request.finish_reason == "error":
            news.error = (request.constraint and request.constraint.error) or _FAILURES.get(request.stop_reason or 0, "the request failed in the executor")
        elif request.stop_reason is not None and (request.stop_reason in request.params.stop_token_ids or request.stop_reason not in self._eos_ids):
            news.stop_reason = request.stop_reason
        return news

    def stats(self, *, kv_map: bool = False) -> EngineStats:
        """Counters and gauges as of now; the engine's own object. kv_map: with the state of every block."""
        return self.accounting.snapshot(self.adapters, idle=not self.has_work, kv_map=kv_map)

    def close(self) -> None:
        """Free the executor."""
        self.controls.close()
        self.executor.close()
        self.masks.close()
        if self.grammars is not None:
            self.grammars.close()


def _rows(ids: Any, lp: Any, rank: Any) -> list[tuple[list[int], list[float], int]]:
    return list(zip(ids.tolist(), lp.tolist(), rank.tolist(), strict=True))

"""QueueLimits: how many requests and tokens may wait, and how long. What is beyond is refused with the limit and when to come back."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from llmx.config import SchedulerConfig
from llmx.errors import QueueFull, QueueTimeout, RequestError
from llmx.request import Request
from llmx.sched.scheduler import Scheduler

__all__ = ["QueueLimits"]


class QueueLimits:
    """The limits of one scheduler's queue. Requests that ran before and wait again are never refused.

    closed: why no request is taken at all; empty: some are.
    """

    def __init__(self, config: SchedulerConfig, scheduler: Scheduler, clock: Callable[[], float] = monotonic) -> None:
        self._max_requests = config.max_queued_requests
        self._max_tokens = config.max_queued_tokens
        self._timeout_s = config.queue_timeout_s
        self._scheduler = scheduler
        self._clock = clock
        self.closed = ""

    def check(self, num_tokens: int) -> None:
        """Raise QueueFull when a request of so many tokens would be one too many. One that finds nobody waiting is never. RequestError: closed."""
        scheduler = self._scheduler
        if self.closed:
            raise RequestError(self.closed, field="prompt")
        if self._max_requests is not None and scheduler.num_queued >= self._max_requests:
            why = f"{self._max_requests} requests are waiting, which is the limit (--max-num-queued-reqs): try again later"
            raise QueueFull(why, retry_after_s=self._retry_after_s())
        if self._max_tokens is not None and (waiting := scheduler.waiting.num_tokens) and waiting + num_tokens > self._max_tokens:
            why = f"requests of {waiting} tokens are waiting, with {num_tokens} more it would be over the limit of {self._max_tokens}"
            raise QueueFull(f"{why} (--max-num-queued-tokens): try again later", retry_after_s=self._retry_after_s())

    def overdue(self) -> list[tuple[Request, RequestError]]:
        """Requests that are to be ended, each with its error: those that have waited too long for their first step (an answer whose siblings run may
        wait), and those that can never start.
        """
        failed, self._scheduler.admission.failed = self._scheduler.admission.failed, {}
        return [*failed.items(), *self._late()]

    def _late(self) -> list[tuple[Request, RequestError]]:
        if self._timeout_s is None:
            return []
        latest = self._clock() - self._timeout_s
        begun = {request.id for request in self._scheduler.running}
        late = [one for one in self._scheduler.waiting if one.arrival_s < latest and not one.started_s and one.id not in begun]
        why = f"the request waited {self._timeout_s:g} s for its first step, which is the limit (--queue-timeout): try again later"
        return [(request, QueueTimeout(why, retry_after_s=self._retry_after_s())) for request in late]

    def _retry_after_s(self) -> int:
        return max(1, int(self._scheduler.queue_delay_s))

"""Limits of a key: requests and tokens a minute, and a budget of tokens (llmx_server.budgets), counted on what was used in truth.

Those of a minute are buckets that fill evenly and hold one minute's worth. A request is let in while there is something left; the tokens of its prompt are
taken at once, those of its answer as they come. So the last one let in may take more than was left, and those after it wait the longer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from llmx.record import record
from llmx_server.budgets import Budget, Ledger
from llmx_server.errors import RateLimited

__all__ = ["Limits", "Meter"]


@record
class Limits:
    """Requests and tokens (prompt and answer) a minute, and tokens of a longer time; 0: no limit."""

    rpm: int = 0
    tpm: int = 0
    budget: Budget = Budget()


class _Bucket:
    """most: what it holds, and what flows in within a minute."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most, self._clock = most, clock
        self._level, self._at = float(most), clock()

    def level(self) -> float:
        """What is left; below 0 after more was used than was there."""
        now = self._clock()
        self._level = min(float(self.most), self._level + (now - self._at) * self.most / 60)
        self._at = now
        return self._level

    def take(self, amount: int) -> None:
        """Use some, or with a negative amount give it back."""
        self._level = min(float(self.most), self.level() - amount)

    def seconds_to(self, level: float) -> float:
        """Until so much is there."""
        return max(0.0, (level - self.level()) * 60 / self.most)


class Meter:
    """What one key has used of its limits. name: the key's, for messages. ledger: where its budget is counted, if it has one. clock: seconds."""

    def __init__(self, name: str, limits: Limits, clock: Callable[[], float] = time.monotonic, *, ledger: Ledger | None = None) -> None:
        self.name, self.limits = name, limits
        amounts = {"requests": limits.rpm, "tokens": limits.tpm}
        self._buckets = {kind: _Bucket(most, clock) for kind, most in amounts.items() if most}
        self._ledger = ledger if limits.budget.tokens else None
        self._account = ledger.account(name) if ledger is not None and limits.budget.tokens else None
        self._order = asyncio.Lock()  # of those who wait to be let in

    def check(self) -> None:
        """Raise RateLimited while a request would not be let in, QuotaExceeded when the budget is used up."""
        if self._account is not None:
            self._account.check(self.limits.budget)
        for kind, bucket in self._buckets.items():
            if wait := bucket.seconds_to(1):
                message = f"the API key {self.name!r} may use {bucket.most} {kind} a minute: try again in {math.ceil(wait)} s"
                raise RateLimited(message, kind=kind, retry_after_s=math.ceil(wait))

    def admit(self, prompt_tokens: int) -> None:
        """Let one request in and count it, with the tokens of all its prompts. Raises as `check` does."""
        self.check()
        if bucket := self._buckets.get("requests"):
            bucket.take(1)
        self.used(prompt_tokens)

    async def admit_later(self, prompt_tokens: int) -> None:
        """As `admit`, as soon as there is room; who asks first is let in first. Raises QuotaExceeded: more budget is not waited for."""
        async with self._order:
            while wait := max((bucket.seconds_to(1) for bucket in self._buckets.values()), default=0.0):
                await asyncio.sleep(wait)
            self.admit(prompt_tokens)

    def used(self, tokens: int) -> None:
        """Tokens that were computed; negative: that were counted and then not computed."""
        if bucket := self._buckets.get("tokens"):
            bucket.take(tokens)
        if self._account is not None and self._ledger is not None:
            self._account.add(tokens, self.limits.budget.period)
            self._ledger.changed()

    def headers(self) -> dict[str, str]:
        """x-ratelimit-* as OpenAI names them; reset: the time until all of the limit is there again."""
        shown = {}
        for kind, bucket in self._buckets.items():
            shown[f"x-ratelimit-limit-{kind}"] = str(bucket.most)
            shown[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(bucket.level())))
            shown[f"x-ratelimit-reset-{kind}"] = f"{bucket.seconds_to(bucket.most):.3f}s"
        return shown | (self._account.headers(self.limits.budget) if self._account is not None else {})

"""Token budgets of keys: what each has used of its day, month or life, kept in a small file beside the file of keys.

The file, KEYFILE.usage.json, is {"version": 1, "used": {NAME: {"period": "2026-11", "tokens": 1234}}}. Servers that share it add what they counted
since they last wrote, so none undoes another's counting. Days and months are those of UTC.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from llmx.errors import ConfigError
from llmx.record import record
from llmx_server.errors import QuotaExceeded
from llmx_server.saved_json import save_json

__all__ = ["PERIODS", "Account", "Budget", "Ledger", "Period", "used_by_key"]

Period = Literal["day", "month", "total"]
PERIODS: tuple[Period, ...] = ("day", "month", "total")
_VERSION = 1
_SAVE_S = 1.0  # what was used is written so soon, and when the server ends
_log = logging.getLogger("llmx.server")


@record
class Budget:
    """Tokens of prompts and answers in a day, a month, or ever; 0: no limit."""

    tokens: int = 0
    period: Period = "total"


class _Used(msgspec.Struct):
    period: str
    tokens: int


class _File(msgspec.Struct):
    version: int = _VERSION
    used: dict[str, _Used] = {}


class Account:
    """What one key has used in the present period. `counted` has not been written yet."""

    def __init__(self, name: str, clock: Callable[[], datetime]) -> None:
        self.name, self._clock = name, clock
        self.written, self.counted = _Used("", 0), _Used("", 0)

    def used(self, period: Period) -> int:
        """Tokens since the period began. With another kind of period than before it begins now."""
        label = _label(period, self._clock())
        return sum(part.tokens for part in (self.written, self.counted) if part.period == label)

    def add(self, tokens: int, period: Period) -> None:
        """Count tokens; negative: that were counted and then not computed."""
        label = _label(period, self._clock())
        if self.counted.period != label:
            self.counted = _Used(label, 0)
        self.counted.tokens += tokens

    def check(self, budget: Budget) -> None:
        """Raise QuotaExceeded when nothing is left."""
        if budget.tokens and self.used(budget.period) >= budget.tokens:
            ends = self.ends_in(budget.period)
            when = f"it begins again in {ends} s" if ends is not None else "ask whoever runs the server for more"
            span = "in all" if budget.period == "total" else f"a {budget.period}"
            raise QuotaExceeded(f"the API key {self.name!r} has used its budget of {budget.tokens} tokens {span}: {when}", retry_after_s=ends)

    def ends_in(self, period: Period) -> int | None:
        """Seconds to the end of the period; None: it has none."""
        now = self._clock()
        if period == "total":
            return None
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        end = day + timedelta(days=1) if period == "day" else (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        return int((end - now).total_seconds()) + 1

    def headers(self, budget: Budget) -> dict[str, str]:
        """What is left, as the other limits are told."""
        if not budget.tokens:
            return {}
        shown = {
            "x-ratelimit-limit-budget-tokens": str(budget.tokens),
            "x-ratelimit-remaining-budget-tokens": str(max(0, budget.tokens - self.used(budget.period))),
        }
        ends = self.ends_in(budget.period)
        return shown if ends is None else {**shown, "x-ratelimit-reset-budget-tokens": f"{ends}s"}


class Ledger:
    """The accounts of all keys with a budget, and their file. Raises ConfigError for a file that cannot be read."""

    def __init__(self, key_file: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._clock = _beside(key_file), clock
        self._accounts: dict[str, Account] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._written = _read(self._path)

    def check_writable(self) -> None:
        """Raise ConfigError when the file cannot be written."""
        try:
            self._save()
        except OSError as error:
            why = f"budgets need a file beside the keys: {error}; put the file of keys into a folder that the server may write"
            raise ConfigError(f"{self._path} cannot be written: {why}", field="server.api_key_file") from error

    def account(self, name: str) -> Account:
        """The account of a key."""
        if name not in self._accounts:
            account = self._accounts[name] = Account(name, self._clock)
            account.written = self._written.used.get(name, account.written)
        return self._accounts[name]

    def changed(self) -> None:
        """Something was counted: write it soon."""
        if self._timer is None:
            with contextlib.suppress(RuntimeError):  # no event loop: whoever counts saves
                self._timer = asyncio.get_running_loop().call_later(_SAVE_S, self.save)

    def save(self) -> None:
        """Write what was counted. A file that cannot be written is told in the log; the next time tries again, and what was counted holds."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._save()
        except (OSError, ConfigError) as error:
            _log.error("%s cannot be written, what keys have used is kept in memory only: %s", self._path, error)

    def _save(self) -> None:
        with _locked(self._path):
            self._written = _read(self._path)
            for name, account in self._accounts.items():
                old, new = self._written.used.get(name, _Used("", 0)), account.counted
                past = len(old.period) == len(new.period) and old.period > new.period  # another server has begun the next period
                if new.tokens and not past:
                    before = old.tokens if old.period == new.period else 0
                    self._written.used[name] = _Used(new.period, max(0, before + new.tokens))
            save_json(self._path, msgspec.to_builtins(self._written))
        for name, account in self._accounts.items():
            account.written, account.counted = self._written.used.get(name, account.written), _Used(account.counted.period, 0)


def used_by_key(key_file: Path, name: str, period: Period) -> int:
    """Tokens that a key has used in its present period, as the file says. Raises ConfigError."""
    found = _read(_beside(key_file)).used.get(name)
    return found.tokens if found is not None and found.period == _label(period, datetime.now(UTC)) else 0


def _label(period: Period, now: datetime) -> str:
    return {"day": f"{now:%Y-%m-%d}", "month": f"{now:%Y-%m}", "total": "total"}[period]


def _beside(key_file: Path) -> Path:
    return key_file.with_name(f"{key_file.name}.usage.json")


def _read(path: Path) -> _File:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return _File()
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; move it away, and what keys have used begins at 0", field="server.api_key_file") from error
    if found.version != _VERSION:
        why = f"{path} has version {found.version}, this server reads version {_VERSION}: run the version of llmx that wrote it"
        raise ConfigError(why, field="server.api_key_file")
    return found


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One server at a time."""
    with path.with_name(f"{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

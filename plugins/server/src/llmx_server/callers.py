"""Callers: from a key to its Caller, with one meter for all that a key does, whichever way its requests come."""

from __future__ import annotations

from dataclasses import replace

from llmx_server.budgets import Ledger
from llmx_server.caller import Caller
from llmx_server.keys import Key, KeyRing
from llmx_server.limits import Meter

__all__ = ["Callers"]


class Callers:
    """Those whom `keys` name. Raises ConfigError when a key has a budget and there is no writing down what it used.

    salted: each key has a cache salt of its own. It comes from the key's hash, which nobody else knows.
    """

    def __init__(self, keys: KeyRing, *, salted: bool = False) -> None:
        self.keys, self._salted = keys, salted
        self._meters: dict[str, Meter] = {}
        self._ledger = Ledger(keys.path) if keys.path is not None else None
        if self._ledger is not None and any(key.limits.budget.tokens for key in keys.filed()):
            self._ledger.check_writable()

    def of(self, key: Key) -> Caller:
        """Who shows this key. A key whose limits have changed in the file begins anew."""
        meter = self._meters.get(key.name)
        if meter is None or meter.limits != key.limits:
            meter = self._meters[key.name] = Meter(key.name, key.limits, ledger=self._ledger)
        return Caller(key.name, "admin" in key.scopes, meter, salt=key.digest.hex() if self._salted else "")

    def owner(self, name: str) -> Caller:
        """Who owns something, for work that goes on without a request. Never an admin: the work outlives the request that a key was shown for."""
        key = self.keys.named(name)
        return replace(self.of(key), admin=False) if key else Caller(name, False, salt=name if self._salted else "")

    def save(self) -> None:
        """The server ends: write down what budgets were used."""
        if self._ledger is not None:
            self._ledger.save()

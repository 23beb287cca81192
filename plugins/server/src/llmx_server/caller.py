"""Caller: whose request this is, and so what it may see of what is kept, and how much it may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from llmx.record import record
from llmx_server.limits import Meter
from llmx_server.turns import Turn

__all__ = ["Caller", "acting", "caller"]


@record
class Caller:
    """Who asks. name: of the key, "" where none is asked for. admin: sees what everybody keeps; so does the server itself, and everybody without keys.

    turn: of work that nobody waits for, the line of a batch: it is let in when the limits of the key and the others' turns allow, and not refused.
    salt: what keeps the prompt starts of this caller apart from others' in the prefix cache; "": nothing does.
    """

    name: str = ""
    admin: bool = True
    meter: Meter | None = None
    turn: Turn | None = None
    salt: str = ""

    def sees(self, owner: str) -> bool:
        """Whether something of this owner is there for the caller. What has no owner ("") was made without keys: with keys it is there for admins only."""
        return self.admin or (owner == self.name and owner != "")

    def salted(self, cache_salt: str) -> str:
        """The cache_salt of a request, with the caller's own before it. Both cannot be told apart wrongly: a caller's has one length."""
        return self.salt + cache_salt

    def check_limits(self) -> None:
        """Raise RateLimited while a request would not be let in."""
        if self.meter is not None:
            self.meter.check()

    async def admit(self, prompt_tokens: int) -> None:
        """Let a request in, once it is known to be valid: prompt_tokens are those of all its prompts. Raises RateLimited; with a turn it waits instead."""
        if self.turn is None:
            if self.meter is not None:
                self.meter.admit(prompt_tokens)
            return
        if self.meter is not None:
            await self.meter.admit_later(prompt_tokens)
        await self.turn.take()  # last: what waits for its own limits takes nobody's place

    def used(self, tokens: int) -> None:
        """Count tokens that were generated; negative: of a prompt that was counted and then not computed."""
        if self.meter is not None:
            self.meter.used(tokens)


# A task copies the context of the one that starts it: what a request leaves running in the background still has its caller.
_CALLER: ContextVar[Caller] = ContextVar("llmx_caller")


def caller() -> Caller:
    """Whose request is being answered; without keys, nobody's in particular."""
    return _CALLER.get(Caller())


@contextmanager
def acting(who: Caller) -> Iterator[None]:
    """What runs inside is asked by `who`."""
    token = _CALLER.set(who)
    try:
        yield
    finally:
        _CALLER.reset(token)

"""What a drafter on the host is: it guesses the tokens that come next from tokens alone, and the model then checks the guesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Drafter", "Proposer"]


class Proposer(Protocol):
    """One request's side of a drafter. Called between two steps, on the engine's thread."""

    def propose(self, limit: int) -> tuple[list[int], int] | None:
        """(1 to `limit` tokens that may come next, evidence), or None without a guess. Equal tokens must give equal guesses.

        evidence: how many of the last tokens speak for the guess. Acceptance is measured apart for little and much of it.
        """
        ...

    def close(self) -> None:
        """The request has ended."""
        ...


class Drafter(Protocol):
    """One engine's drafter."""

    def begin(self, tokens: Sequence[int], *, private: bool) -> Proposer:
        """A proposer for a request. tokens: its prompt and answer, a list that grows while it runs; read it, never change it.

        private: nothing of this request may be seen in drafts of others, nor theirs in its own.
        """
        ...

"""Drafters on the device: Programs that the executor runs at the end of a step. Their guesses come back with the step's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from llmx.config import EngineConfig
from llmx.draft.depth import DEVICE_EVIDENCE
from llmx.draft.drafter import Proposer

if TYPE_CHECKING:
    from llmx.models.load import LoadedModel
    from llmx.models.registry import ModelRegistry

__all__ = ["DeviceDrafter", "DeviceProposer"]


class DeviceProposer:
    """One request's guesses, as the last step left them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens, self._length, self._guess = tokens, -1, list[int]()

    def receive(self, guess: list[int]) -> None:
        """What the executor guesses to follow the tokens as they are now."""
        self._length, self._guess = len(self._tokens), guess

    def propose(self, limit: int) -> tuple[list[int], int] | None:
        """The guesses, unless the request has gone on without them."""
        if self._length != len(self._tokens) or not self._guess:
            return None
        return self._guess[:limit], DEVICE_EVIDENCE

    def close(self) -> None:
        """Nothing outlives the request."""


@runtime_checkable
class DeviceDrafter(Protocol):
    """A drafter that brings Programs instead of guessing itself."""

    def join(self, loaded: LoadedModel, config: EngineConfig, registry: ModelRegistry) -> LoadedModel:
        """The model with the drafter's Programs, States and weights beside its own. Raises ConfigError, ModelError."""
        ...

    def begin(self, tokens: Sequence[int], *, private: bool) -> Proposer:
        """A DeviceProposer for a request."""
        ...

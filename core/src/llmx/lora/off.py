"""NoAdapters: what an engine has in place of Adapters where these are off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from llmx.errors import RequestError
from llmx.request import Request

__all__ = ["NamesAdapter", "NoAdapters"]


class NamesAdapter(Protocol):
    """A message that names an adapter, or "" for none."""

    id: str
    lora: str


class NoAdapters:
    """Every method that would do something says how adapters are switched on."""

    def __len__(self) -> int:
        return 0

    def facts(self) -> list[dict[str, Any]]:
        """Each adapter that is loaded: name, path, rank, digest, pinned, bytes."""
        return []

    @property
    def in_use(self) -> tuple[int, int, int]:
        """(device slots that hold an adapter, slots, adapters brought into one since the start)."""
        return 0, 0, 0

    def check(self, message: NamesAdapter) -> None:
        """Raise RequestError when a request names an adapter that is not there."""
        if message.lora:
            raise _off()

    def fields(self, message: NamesAdapter) -> dict[str, Any]:
        """Fields of its Request."""
        return {}

    def load(self, name: str, path: str, running: Iterable[Request], *, in_place: bool = False, pin: bool = False) -> dict[str, Any]:
        """Serve the adapter in a folder as `name`."""
        raise _off()

    def resolve(self, name: str, running: Iterable[Request]) -> dict[str, Any]:
        """The facts about an adapter that a resolver finds; {}: none does."""
        return {}

    def pin(self, name: str, running: Iterable[Request]) -> dict[str, Any]:
        """Keep an adapter in a device slot."""
        raise _off()

    def unload(self, name: str, running: Iterable[Request]) -> None:
        """Serve an adapter no more."""
        raise _off()


def _off() -> RequestError:
    return RequestError("adapters are off: start with --enable-lora", field="lora_name")

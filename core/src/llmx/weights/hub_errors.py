"""What goes wrong with the hub, in words that say what to do. The library's errors are many and changed their classes between its versions."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from llmx.errors import ModelError
from llmx.weights.hub_name import HubName

__all__ = ["NotOnHub", "explained", "transient"]

_TRANSPORTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # those that versions of huggingface_hub use


class NotOnHub(ModelError):
    """The hub has no such repository or revision, or none that may be read, or not what is looked for in it."""


class _Place(Protocol):
    """What an explanation needs of a Hub."""

    @property
    def token(self) -> str | None: ...

    def address(self) -> str: ...

    def page(self, name: HubName) -> str: ...


def transient(error: Exception) -> bool:
    """Whether a connection broke, so that it may work when tried again."""
    return _of_transport(error) and getattr(error, "response", None) is None


@contextmanager
def explained(name: HubName, hub: _Place) -> Iterator[None]:
    """Turns what the library, the network and the disk raise into ModelError; everything else passes."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        text = _explain(error, name, hub)
        if text is None:
            raise
        raise (NotOnHub if _absent(error) else ModelError)(text) from error


def _absent(error: Exception) -> bool:
    from huggingface_hub import errors

    return isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.HFValidationError)


def _explain(error: Exception, name: HubName, hub: _Place) -> str | None:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.HFValidationError):
        return f"{name.repo!r} cannot be the name of a repository: {str(error).splitlines()[0]}"
    if isinstance(error, errors.GatedRepoError):
        return _gated(name, hub, status)
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name.repo} has no revision {name.revision!r}: {hub.page(name)}/tree/main shows its branches and tags"
    if isinstance(error, errors.EntryNotFoundError):
        return f"{name} lacks a file that the hub listed: {str(error).splitlines()[0]}; run the command again"
    if isinstance(error, errors.RepositoryNotFoundError):
        # without a token the hub answers the same for a model that is private and for one that does not exist
        return (
            f"there is no model {name.repo!r} at {hub.address()} (status {status}), or it is private: check the name at {hub.page(name)};"
            f" {_token_remedy(hub)}"
        )
    if status in (401, 403):
        return f"{hub.address()} refuses access to {name.repo} (status {status}): {_token_remedy(hub)}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{name} cannot be fetched: HF_HUB_OFFLINE is set"
    if status is not None:
        return f"{hub.address()} answers {status} for {name}: try again later; what was fetched is kept, and the same command goes on from there"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full while {name} is fetched: free some space and run the same command, which goes on from there, or give --download-dir"
    if _of_transport(error):
        why = f"the connection to {hub.address()} fails ({_reason(error)})"
        return f"{why}: check the network, a proxy or HF_ENDPOINT; the same command then goes on from what is here"
    if isinstance(error, OSError):
        return f"{name} cannot be stored: {error}"
    return None


def _gated(name: HubName, hub: _Place, status: int | None) -> str:
    return (
        f"{name.repo} is gated (status {status}): accept its conditions at {hub.page(name)} with your account, then"
        f" {_token_remedy(hub)}"
    )


def _token_remedy(hub: _Place) -> str:
    from huggingface_hub import get_token

    if hub.token or get_token():
        return "the token that was sent (--hf-token, LLMX_HF_TOKEN, HF_TOKEN or that of `hf auth login`) may not read it: give another"
    return "set HF_TOKEN (or give --hf-token) to a token of an account that may read it"


def _of_transport(error: BaseException) -> bool:
    return any(cls.__module__.split(".")[0] in _TRANSPORTS for cls in type(error).__mro__)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"

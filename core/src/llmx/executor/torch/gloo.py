"""GlooCommunicator: collectives by torch's gloo, between processes that reach each other's network addresses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from llmx.errors import PlatformError
from llmx.hooks.collectives import COLLECTIVES, ProcessGroup

__all__ = ["GlooCommunicator", "gloo_group"]

_DIST: Any = torch.distributed  # whose classes of stores and groups have no types
_JOIN_S = 120.0  # for all ranks to come; for one of them to answer, when it lives and does nothing, the engine's watchdog is sooner
_ANSWER = timedelta(days=1)
_LOCAL = "127.0.0.1"


def gloo_group(size: int, host: str = _LOCAL) -> ProcessGroup:
    """A group whose store listens in this process, on a port that is free. host: this machine's address, as the other ranks reach it."""
    store = _DIST.TCPStore(host, 0, size, is_master=True, timeout=timedelta(seconds=_JOIN_S), wait_for_workers=False)
    return ProcessGroup(size, 0, f"{host}:{store.port}", keep=store)


class GlooCommunicator:
    """llmx.hooks.collectives.Communicator over torch tensors on any device; they go through host memory.

    host: this rank's own address; the group's, on one machine. Raises PlatformError when the others do not come.
    """

    def __init__(self, group: ProcessGroup, host: str = _LOCAL) -> None:
        self.rank, self.size, self._lost = group.rank, group.size, False
        address, port = group.address.rsplit(":", 1)
        try:
            store = group.keep or _DIST.TCPStore(address, int(port), group.size, is_master=False, timeout=timedelta(seconds=_JOIN_S))
            options = _DIST.ProcessGroupGloo._Options()  # the group of torch's own defaults asks the host's name for its address
            options._devices, options._timeout = [_DIST.ProcessGroupGloo.create_device(hostname=host)], _ANSWER
            self._group: Any = _DIST.ProcessGroupGloo(_DIST.PrefixStore("llmx", store), group.rank, group.size, options)
        except RuntimeError as error:
            raise PlatformError(f"the {group.size} ranks did not meet at {group.address}: {error}") from error

    def supports(self, op: str, dtype: str) -> str | None:
        """The three, for whatever torch adds up."""
        if op not in COLLECTIVES:
            return f"gloo has {', '.join(COLLECTIVES)}"
        return None if hasattr(torch, dtype) else f"torch has no tensors of {dtype}"

    def _gathered(self, x: Any) -> list[torch.Tensor]:
        mine = (torch.from_numpy(x) if isinstance(x, np.ndarray) else x).contiguous().cpu()
        if not mine.numel():
            return [mine.clone() for _ in range(self.size)]
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self._wait(lambda: self._group.allgather([found], [mine]))
        return found

    def _wait(self, start: Any) -> None:
        if self._lost:
            raise PlatformError("a rank of this engine is gone")
        try:
            start().wait()
        except RuntimeError as error:
            raise PlatformError(f"a rank of this engine is gone: {str(error).splitlines()[0]}") from error

    def all_reduce(self, x: Any) -> Any:
        """Every rank gets all arrays and adds them up by itself, since gloo's own sums have an order of their own."""
        first, *others = self._gathered(x)
        for other in others:
            first = first + other
        return _like(first, x)

    def all_gather(self, x: Any) -> Any:
        """Along the last axis."""
        return _like(torch.cat(self._gathered(x), dim=-1), x)

    def broadcast(self, x: Any, root: int) -> Any:
        """From one rank."""
        data = (torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x.detach().cpu().clone()).contiguous()
        if data.numel():
            options = _DIST.BroadcastOptions()
            options.rootRank = root
            self._wait(lambda: self._group.broadcast([data], options))
        return _like(data, x)

    def abort(self) -> None:
        """Later calls raise; one in progress does when the lost rank's connections are closed, which its end does."""
        self._lost = True

    def close(self) -> None:
        """Idempotent."""
        self._lost, self._group = True, None


def _like(result: torch.Tensor, x: Any) -> Any:
    return result.numpy() if isinstance(x, np.ndarray) else result.to(x.device)

"""TorchCommunicator: collectives by one of torch's process groups, between processes that reach each other's network addresses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from llmx.errors import PlatformError
from llmx.hooks.collectives import COLLECTIVES, ProcessGroup

__all__ = ["TorchCommunicator", "store_group"]

_DIST: Any = torch.distributed  # whose classes of stores and groups have no types
_JOIN_S = 120.0  # for all ranks to come; for one of them to answer, when it lives and does nothing, the engine's watchdog is sooner
_ANSWER = timedelta(days=1)
_LOCAL = "127.0.0.1"
_HOST_GROUP = "ProcessGroupGloo"
_ONE_EXCHANGE = 1 << 16  # bytes up to which every rank sends all it has to every other, since a second exchange would cost more


def store_group(size: int, host: str = _LOCAL) -> ProcessGroup:
    """A group whose store listens in this process, on a port that is free. host: this machine's address, as the other ranks reach it."""
    store = _DIST.TCPStore(host, 0, size, is_master=True, timeout=timedelta(seconds=_JOIN_S), wait_for_workers=False)
    return ProcessGroup(size, 0, f"{host}:{store.port}", keep=store)


class TorchCommunicator:
    """llmx.hooks.collectives.Communicator over torch tensors on any device, and numpy arrays.

    device: where the process group works; what lies elsewhere is copied there and back. backend: the class of torch.distributed that does it.
    host: this rank's own address; the group's, on one machine. Raises PlatformError when the others do not come, or torch was built without the class.
    """

    def __init__(self, group: ProcessGroup, device: str = "cpu", backend: str = _HOST_GROUP, host: str = _LOCAL) -> None:
        self.rank, self.size, self._lost = group.rank, group.size, False
        self._device = torch.device(device)
        address, port = group.address.rsplit(":", 1)
        make = getattr(_DIST, backend, None)
        if make is None:
            raise PlatformError(f"torch {torch.__version__} was built without {backend}, which joins ranks on {device}: install the build for this device")
        try:
            store = group.keep or _DIST.TCPStore(address, int(port), group.size, is_master=False, timeout=timedelta(seconds=_JOIN_S))
            if backend == _HOST_GROUP:
                options = make._Options()  # the group of torch's own defaults asks the host's name for its address
                options._devices = [make.create_device(hostname=host)]
            else:
                torch.get_device_module(self._device).set_device(self._device)
                options = make.Options()
            options._timeout = _ANSWER
            self._group: Any = make(_DIST.PrefixStore("llmx", store), group.rank, group.size, options)
        except RuntimeError as error:
            raise PlatformError(f"the {group.size} ranks did not meet at {group.address}: {error}") from error

    def supports(self, op: str, dtype: str) -> str | None:
        """The three, for whatever torch adds up."""
        if op not in COLLECTIVES:
            return f"there are {', '.join(COLLECTIVES)}"
        return None if hasattr(torch, dtype) else f"torch has no tensors of {dtype}"

    def _here(self, x: Any) -> torch.Tensor:
        """On the group's device, in one piece."""
        return (torch.from_numpy(x) if isinstance(x, np.ndarray) else x).detach().to(self._device).contiguous()

    def _gathered(self, mine: torch.Tensor) -> list[torch.Tensor]:
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
        """The ranks' parts are added up by us, since sums of torch's groups have an order of their own.

        Few bytes: every rank gets all and adds. More: each rank adds up its part of the rows, and the sums are gathered, which sends no more than a ring would.
        """
        mine = self._here(x)
        if self.size == 2 or mine.numel() * mine.element_size() <= _ONE_EXCHANGE:
            return _like(_total(self._gathered(mine)), x)
        share = -(-mine.numel() // self.size)
        padded = torch.nn.functional.pad(mine.reshape(-1), (0, share * self.size - mine.numel()))
        parts = torch.empty_like(padded)
        self._wait(lambda: self._group.alltoall_base(parts, padded, [], []))
        sums = torch.cat(self._gathered(_total(list(parts.chunk(self.size)))))
        return _like(sums[: mine.numel()].reshape(mine.shape).clone(), x)

    def all_gather(self, x: Any) -> Any:
        """Along the last axis."""
        return _like(torch.cat(self._gathered(self._here(x)), dim=-1), x)

    def broadcast(self, x: Any, root: int) -> Any:
        """From one rank."""
        data = self._here(x).clone()
        if data.numel():
            options = _DIST.BroadcastOptions()
            options.rootRank = root
            self._wait(lambda: self._group.broadcast([data], options))
        return _like(data, x)

    def abort(self) -> None:
        """Later calls raise. One in progress does when the lost rank's connections are closed, which its end does; a device's group is told to give up."""
        self._lost = True
        if self._device.type != "cpu" and self._group is not None:
            self._group.abort()

    def close(self) -> None:
        """Idempotent."""
        self._lost, self._group = True, None


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    """In the order of the ranks."""
    first, *others = parts
    for other in others:
        first = first + other
    return first


def _like(result: torch.Tensor, x: Any) -> Any:
    return result.cpu().numpy() if isinstance(x, np.ndarray) else result.to(x.device)

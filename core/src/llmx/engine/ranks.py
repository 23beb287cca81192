"""Tensor parallelism at the start: the rank's share of the model, what does not go together with it, and the processes of the other ranks."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from llmx.config import EngineConfig
from llmx.errors import ConfigError, EngineDead, PlatformError, ProgramError
from llmx.executor.base import Executor
from llmx.program.passes.shard import part_cuts, shard
from llmx.program.verify import verify

if TYPE_CHECKING:
    from llmx.engine.start import Prepared
    from llmx.executor.distributed.mp import RankProcess
    from llmx.models.load import LoadedModel

__all__ = ["check_ranks", "share_of", "with_ranks"]

_FIELD = "tensor_parallel_size"


def share_of(loaded: LoadedModel, size: int, rank: int) -> LoadedModel:
    """The model with one rank's Programs. Raises ConfigError naming what cannot be shared by `size` ranks."""
    if size == 1:
        return loaded
    if len(loaded.bundle.model.programs) > 1:
        why = "drafters that run on the device are not shared by ranks yet: take ngram or suffix, or leave one of them out"
        raise ConfigError(f"{_FIELD} is {size}, but {why}", field=_FIELD)
    try:
        model = shard(loaded.bundle.model, rank, size)
        verify(model)
    except ProgramError as error:
        why = f"{loaded.summary.name} cannot be shared so: {error}; take another size, or leave it out"
        raise ConfigError(f"{_FIELD} is {size}, but {why}", field=_FIELD) from error
    return replace(loaded, bundle=replace(loaded.bundle, model=model))


def check_ranks(config: EngineConfig, executor: Executor, platform: str) -> None:
    """What does not go together with several ranks. Raises ConfigError, PlatformError."""
    size = config.platform.tensor_parallel_size
    if size == 1:
        return
    if not executor.limits.has("collectives"):
        raise PlatformError(f"{_FIELD} is {size}, but the executor of platform {platform!r} has no collectives: leave it out, or take --platform cpu")


def with_ranks(ready: Prepared, config: EngineConfig, user_set: Iterable[str]) -> Executor:
    """The executor of a prepared engine, with the processes of the other ranks behind it where there are several. config: as the user gave it."""
    size = config.platform.tensor_parallel_size
    if size == 1:
        return ready.executor
    from llmx.executor.distributed.mp import MpExecutor
    from llmx.executor.distributed.wire import Ask, Begin

    group = ready.platform.process_group(ready.config, ready.caps, size)
    others: list[RankProcess] = []
    try:
        for rank in range(1, size):
            others.append(_start(rank, group.fds))
            others[-1].link.send(Begin(config, sorted(user_set), rank, size, group.address, list(group.fds)))
        for other in others:
            if other.receive() != ready.plan.shared:
                raise PlatformError(f"rank {other.rank} chose another plan than rank 0: are its packages the same?")
        for other in others:
            other.link.send(Ask("join"))
        communicator = ready.platform.communicator(ready.config, ready.caps, group)
        for other in others:
            other.receive()
    except BaseException:
        for other in others:
            other.process.kill()
            other.end()
        raise
    ready.executor.connect(communicator)  # type: ignore[attr-defined]  # the feature "collectives"
    cuts = [part_cuts(ready.whole, rank, size) for rank in range(size)] if config.lora.on else ()
    return MpExecutor(ready.executor, others, communicator, shared_memory=ready.caps.has("host.unified"), at_end=group.close, cuts=cuts)


def _start(rank: int, fds: tuple[int, ...]) -> RankProcess:
    from llmx.executor.distributed.mp import RankProcess
    from llmx.executor.distributed.wire import FromRank, Link

    mine, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "llmx.engine.rank", str(theirs.fileno())]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), *fds))
        except OSError as error:
            mine.close()
            raise EngineDead(f"the process of rank {rank} cannot be started: {error}") from error
    return RankProcess(rank, process, Link(mine, FromRank))

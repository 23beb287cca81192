"""Meeting: ranks that exchange rows and do nothing else, for tests and measurements of a platform's collectives.

`python -m llmx.engine.meeting JSON` is one of them. Rank 0 makes the group, starts the others and watches them as an engine does; each runs one
function and prints what it says, a JSON object on a line.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

import msgspec
import numpy as np

from llmx.engine.chosen_platform import ChosenPlatform
from llmx.engine.rank import end_with_rank_0
from llmx.errors import EngineDead, LlmxError
from llmx.hooks.collectives import Communicator, ProcessGroup
from llmx.hooks.loader import PluginLoader, load_target
from llmx.platform.torch_runtime import load_torch
from llmx.resolve import resolve

__all__ = ["Arrays", "Meeting", "NumpyArrays", "main"]

_START_S = 180.0  # for all ranks to be there
_END_S = 5.0


class Arrays(Protocol):
    """Arrays of a platform's executor."""

    def put(self, values: np.ndarray, dtype: str) -> Any:
        """Values, of any shape, as an array of the same shape and a type by its name (numpy's, "bfloat16"), rounded to it."""
        ...

    def get(self, x: Any) -> np.ndarray:
        """The values: float32, or int64 for whole numbers."""
        ...

    def name(self, x: Any) -> str:
        """The name of its type."""
        ...

    def wait(self) -> None:
        """Until the device has done what it was given."""
        ...


class NumpyArrays:
    """Arrays of numpy."""

    def put(self, values: np.ndarray, dtype: str) -> np.ndarray:
        """As Arrays."""
        return values.astype(dtype)

    def get(self, x: Any) -> np.ndarray:
        """As Arrays."""
        values = np.asarray(x)
        return values.astype(np.int64 if values.dtype.kind in "iub" else np.float32)  # a bfloat16 that another library brings has a kind of its own

    def name(self, x: Any) -> str:
        """As Arrays."""
        return str(x.dtype)

    def wait(self) -> None:
        """numpy has always done it."""


class _Place(msgspec.Struct):
    """Who a process is. task: "module:function" of (communicator, arrays, say, args). end: a connection that rank 0 holds open."""

    options: dict[str, Any]
    size: int
    task: str
    args: dict[str, Any]
    rank: int = 0
    address: str = ""
    fds: list[int] = []
    end: int = -1


class Meeting:
    """All ranks of one meeting, in processes of their own. options: for llmx.resolve, `platform` among them. Leave it by `close`, or as a context."""

    def __init__(self, options: dict[str, Any], size: int, task: str, args: dict[str, Any] | None = None) -> None:
        place = _Place({**options, "tensor_parallel_size": size}, size, task, args or {})
        self._size, self._noise = size, list[str]()
        self._process = subprocess.Popen(_command(place), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def said(self, silence_s: float) -> Iterator[dict[str, Any]]:
        """What ranks say, until all have ended. Raises EngineDead when they do not meet, or when none says anything for silence_s seconds."""
        assert self._process.stdout is not None
        fd, rest, there = self._process.stdout.fileno(), b"", 0
        until = monotonic() + _START_S
        while True:
            poll = select.poll()
            poll.register(fd, select.POLLIN | select.POLLHUP)
            if not poll.poll(max(0.0, until - monotonic()) * 1000):
                raise EngineDead(f"no rank said anything for {silence_s if there == self._size else _START_S:.0f} s{self.noise()}")
            data = os.read(fd, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"{"):
                    self._noise.append(line.decode(errors="replace"))
                    continue
                message = msgspec.json.decode(line)
                there += "met" in message
                if "met" not in message:
                    yield message
            until = monotonic() + (silence_s if there == self._size else _START_S)

    def noise(self) -> str:
        """The last lines that were not said by a rank's function: errors of the interpreter, warnings of libraries."""
        return "".join(f"\n  {line}" for line in self._noise[-8:])

    def close(self) -> None:
        """End every rank, whatever it does. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _command(place: _Place) -> list[str]:
    return [sys.executable, "-m", "llmx.engine.meeting", msgspec.json.encode(place).decode()]


def main(arguments: list[str]) -> int:
    """One rank, from its place to its end; the exit status."""
    try:
        return _rank(msgspec.json.decode(arguments[0], type=_Place))
    except LlmxError as error:
        print(error, file=sys.stderr)
        return 1


def _rank(place: _Place) -> int:
    if place.rank:
        threading.Thread(target=end_with_rank_0, args=(place.end,), daemon=True).start()
    config, _ = resolve(place.options)
    config = replace(config, platform=replace(config.platform, rank=place.rank))
    loader = PluginLoader.discover(config.platform)
    assert config.platform.name is not None
    platform = ChosenPlatform(config.platform.name, loader.activate(config.platform.name))
    caps = platform.caps(config)
    device = platform.manager.hook.llmx_device_runtime(config=config, caps=caps)
    arrays = NumpyArrays() if device is None else load_torch("arrays:TorchArrays")(device)
    if place.rank:
        group = ProcessGroup(place.size, place.rank, place.address, tuple(place.fds))
        _work(place, platform.communicator(config, caps, group), arrays)
        socket.socket(fileno=os.dup(place.end)).recv(1)  # the others may still wait for what this rank sends
        return 0
    group = platform.process_group(config, caps, place.size)
    others = [_start(place, rank, group) for rank in range(1, place.size)]
    communicator = platform.communicator(config, caps, group)
    threading.Thread(target=_watch, args=(list(others), communicator), daemon=True).start()
    _work(place, communicator, arrays)
    _end(others)
    if group.close is not None:
        group.close()
    return 0


def _start(place: _Place, rank: int, group: ProcessGroup) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    mine, theirs = socket.socketpair()
    with theirs:
        own = msgspec.structs.replace(place, rank=rank, address=group.address, fds=list(group.fds), end=theirs.fileno())
        return mine, subprocess.Popen(_command(own), stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), *group.fds))


def _watch(others: list[tuple[socket.socket, subprocess.Popen[bytes]]], communicator: Communicator) -> None:
    """A thread that sleeps until a rank ends: from then on nobody may wait for it."""
    poll = select.poll()
    for end, _ in others:
        poll.register(end, select.POLLHUP | select.POLLRDHUP)
    poll.poll()
    communicator.abort()


def _end(others: list[tuple[socket.socket, subprocess.Popen[bytes]]]) -> None:
    for end, _ in others:
        with contextlib.suppress(OSError):
            end.sendall(b".")
    for _, process in others:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _work(place: _Place, communicator: Communicator, arrays: Arrays) -> None:
    def say(message: dict[str, Any]) -> None:
        os.write(1, msgspec.json.encode({"rank": place.rank, **message}) + b"\n")  # whole lines: ranks share the pipe

    task: Callable[..., None] = load_target(place.task)
    say({"met": True})
    try:
        task(communicator, arrays, say, place.args)
    finally:
        communicator.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

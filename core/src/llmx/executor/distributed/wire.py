"""What rank 0 and the other ranks say to each other, as msgpack over a socket pair. No pickle.

Rank 0 sends Begin, Ask, Run and Finish and gets one Said for each, in order; for a late Run and its Finish one together. Arrays go as their type,
shape and bytes.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec
import numpy as np

from llmx.batch import Step
from llmx.config import EngineConfig
from llmx.errors import EngineDead

__all__ = ["Ask", "Begin", "Finish", "FromRank", "Link", "Run", "Said", "ToRank"]

_HEADER = struct.Struct("<Q")  # bytes of the message that follows


class Begin(msgspec.Struct, tag=0, array_like=True):
    """What to be: the configuration as rank 0 got it, and the place in the group (llmx.hooks.collectives.ProcessGroup)."""

    config: EngineConfig
    user_set: list[str]
    rank: int
    size: int
    address: str
    fds: list[int]


class Ask(msgspec.Struct, tag=1, array_like=True):
    """Something between steps. what: join, load, needs, allocate, warm_up, control, close; args: of the executor's method, as plain values."""

    what: str
    args: dict[str, Any] = {}


class Run(msgspec.Struct, tag=2, array_like=True):
    """Executor.submit, and collect unless the step is late. The answer is the checksum of the tokens."""

    step: Step


class Finish(msgspec.Struct, tag=3, array_like=True):
    """Executor.release and collect. mask, open, drop: of Late; host_logits: rank 0 sends what its processors made of the rows."""

    mask: np.ndarray | None = None
    open: np.ndarray | None = None
    drop: np.ndarray | None = None
    host_logits: bool = False


class Said(msgspec.Struct, tag=4, array_like=True):
    """The answer to one message. error: why not; kind: the class in llmx.errors."""

    value: Any = None
    error: str = ""
    kind: str = ""


ToRank = Begin | Ask | Run | Finish
FromRank = Said


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.integer | np.floating | np.bool_):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be sent to a rank")


def _array(kind: type, value: Any) -> Any:
    if kind is not np.ndarray:
        raise TypeError(f"{kind} is not sent to ranks")
    dtype, shape, data = value
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()  # writable, as libraries want it


class Link:
    """One end of the socket pair between rank 0 and another rank. kind: what comes in, ToRank or FromRank."""

    def __init__(self, end: socket.socket, kind: Any) -> None:
        self._socket = end
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        self._decoder = msgspec.msgpack.Decoder(kind, dec_hook=_array)

    def send(self, message: ToRank | FromRank) -> None:
        """Send a message. Raises EngineDead when the other side is gone."""
        data = self._encoder.encode(message)
        try:
            self._socket.sendall(_HEADER.pack(len(data)) + data)
        except OSError as error:
            raise EngineDead("the connection to a rank is lost") from error

    def receive(self) -> Any:
        """The next message. Raises EngineDead when the other side is gone."""
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size))
        return self._decoder.decode(self._exactly(size))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            try:
                count = self._socket.recv_into(view[done:])
            except OSError as error:
                raise EngineDead("the connection to a rank is lost") from error
            if not count:
                raise EngineDead("the connection to a rank is lost")
            done += count
        return data

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()

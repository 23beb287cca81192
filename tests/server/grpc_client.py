"""Clients of the gRPC port, and a server with one over a FakeEngine in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from processes import HANG_S, Server

from llmx_server.rpc.schema import SERVICE, message_type

__all__ = ["Client", "Fake", "Refused", "address_of", "client_of", "fake", "message"]

Metadata = Sequence[tuple[str, str]]


def message(name: str, **fields: Any) -> Any:
    """A message of llmx.v1."""
    return message_type(name)(**fields)


class Refused(AssertionError):
    """A call that ended with an error. code, details: of gRPC; about: its trailing metadata."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(f"{error.code()}: {error.details()}")
        self.code, self.details, self.about = error.code(), error.details(), dict(error.trailing_metadata() or ())


class Client:
    """One channel."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata = ()) -> None:
        self.channel, self._metadata = channel, metadata

    def generate(self, metadata: Metadata = (), timeout: float = HANG_S, **fields: Any) -> Any:
        """The call of Generate, to iterate over."""
        return self._method("unary_stream", "Generate")(message("GenerateRequest", **fields), timeout=timeout, metadata=[*self._metadata, *metadata])

    def answers(self, **fields: Any) -> list[Any]:
        """All messages of an answer. Raises Refused."""
        try:
            return list(self.generate(**fields))
        except grpc.RpcError as error:
            raise Refused(error) from None

    def text(self, **fields: Any) -> str:
        """The text of answer 0. Raises Refused."""
        return "".join(choice.text for one in self.answers(**fields) for choice in one.choices if choice.index == 0)

    def one(self, name: str, metadata: Metadata = (), **fields: Any) -> Any:
        """The answer of Embed or ListModels. Raises Refused."""
        try:
            return self._method("unary_unary", name)(message(f"{name}Request", **fields), timeout=HANG_S, metadata=[*self._metadata, *metadata])
        except grpc.RpcError as error:
            raise Refused(error) from None

    def _method(self, kind: str, name: str) -> Any:
        request, response = message_type(f"{name}Request"), message_type(f"{name}Response")
        return getattr(self.channel, kind)(f"/{SERVICE}/{name}", request_serializer=request.SerializeToString, response_deserializer=response.FromString)


@contextmanager
def client_of(address: str, metadata: Metadata = (), credentials: grpc.ChannelCredentials | None = None, **options: Any) -> Iterator[Client]:
    """options: of the channel, `_` for a dot."""
    given = [(f"grpc.{name.replace('__', '.')}", value) for name, value in options.items()]
    channel = grpc.secure_channel(address, credentials, given) if credentials is not None else grpc.insecure_channel(address, given)
    with channel:
        yield Client(channel, metadata)


def address_of(server: Server) -> str:
    """The gRPC address of `llmx serve --grpc-port 0`."""
    found = re.search(r"^grpc +(\S+), ", server.summary, re.MULTILINE)
    assert found is not None, server.summary
    return found[1]


@dataclass
class Fake:
    """A server that runs. ended: what it said at its end, empty before."""

    process: subprocess.Popen[str]
    address: str
    url: str

    def state(self) -> dict[str, int]:
        """What its engine runs, has aborted and has generated."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        state: dict[str, int] = json.loads(self.process.stdout.readline())
        return state

    def end(self) -> tuple[int, str, str]:
        """(exit code, what it said at the end, stderr), once it has ended."""
        out, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, out, err


@contextmanager
def fake(*, server: dict[str, Any] | None = None, wait: bool = True, **engine: Any) -> Iterator[Fake]:
    """A server with these settings, over an engine with those of grpc_server.py. wait: until it is ready."""
    given = json.dumps({"server": server or {}, "engine": engine})
    command = [sys.executable, str(Path(__file__).with_name("grpc_server.py")), given]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            words = process.stdout.readline().split()
            assert words[:1] == ["grpc"], process.stderr.read()
            ready = process.stdout.readline().split() if wait else ["ready", ""]
            yield Fake(process, words[1], ready[1])
        finally:
            process.kill()

"""gRPC calls that end early, clients that do not read, health and reflection, and what the start says of the port."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_client import Client, Fake, Refused, client_of, fake, message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from processes import HANG_S, until

from llmx.config import ServerConfig
from llmx.errors import ConfigError
from llmx_server.listen import listen
from llmx_server.rpc.schema import SERVICE, message_type

Code = grpc.StatusCode
LONG = {"tokens": 5000, "max_model_len": 100_000}
BULKY = {"max_tokens": 2000, "n": 16, "logprobs": 20}  # 100 kB a message with chunk=20
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def server() -> Iterator[Fake]:
    with fake(delay_s=0.005, **LONG) as running:
        yield running


@pytest.fixture
def client(server: Fake) -> Iterator[Client]:
    with client_of(server.address) as client:
        yield client


def health(client: Client, service: str = "", **more: Any) -> int:
    status: int = health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=HANG_S, **more).status
    return status


def test_a_cancelled_call_ends_in_the_engine(client: Client, server: Fake) -> None:
    before = server.state()["aborted"]
    call = client.generate(text="a", max_tokens=4000)
    next(call)
    assert server.state()["running"] == 1
    call.cancel()
    until(lambda: server.state()["running"] == 0)
    assert server.state()["aborted"] == before + 1 and server.state()["generated"] < 4000


def test_a_call_whose_deadline_passes_ends_in_the_engine(client: Client, server: Fake) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.generate(text="a", max_tokens=4000, timeout=0.5))
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    until(lambda: server.state()["running"] == 0)


def test_a_channel_that_breaks_ends_its_calls(server: Fake) -> None:
    with client_of(server.address) as client:
        call = client.generate(text="a", max_tokens=4000)
        next(call)
        assert server.state()["running"] == 1
    until(lambda: server.state()["running"] == 0)


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    with fake(server={"reader_timeout_s": 0.5}, chunk=20, **LONG) as server, client_of(server.address, http2__bdp_probe=0) as client:
        call = client.generate(text="a", **BULKY)
        next(call)
        until(lambda: server.state()["running"] == 0)
        assert server.state()["aborted"] == 1 and server.state()["generated"] < 16 * 2000 / 2  # its own stream waited for it
        assert client.text(text="b", max_tokens=20) == "x" * 20
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED and "has not read its answer for 0.5 s (--reader-timeout)" in caught.value.details()
        server.process.send_signal(signal.SIGTERM)
        code, out, err = server.end()
        assert (code, out) == (0, "ended 1 True\n") and err.count("cut off") == 1


def test_a_drain_lets_calls_end_and_takes_no_new_ones() -> None:
    with fake(delay_s=0.01, tokens=150, start_delay_s=0.5, wait=False) as server, client_of(server.address) as client:
        assert health(client) == NOT_SERVING
        with pytest.raises(Refused, match="the model is still loading") as refused:
            client.answers(text="a")
        assert refused.value.code is Code.UNAVAILABLE and refused.value.about["retry-after"] == "5"
        until(lambda: health(client) == SERVING)
        watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=HANG_S)
        call = client.generate(text="a", max_tokens=150)
        next(call)
        assert next(watch).status == SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        with pytest.raises(Refused, match="shutting down and takes no new requests") as refused:
            client.answers(text="a")
        assert refused.value.code is Code.UNAVAILABLE
        assert len(list(call)) == 150  # the last one with the usage
        code, out, err = server.end()
        assert code == 0 and out.endswith("ended 0 True\n") and "Traceback" not in err


def test_what_runs_longer_than_the_drain_ends_with_the_reason() -> None:
    with fake(server={"drain_timeout_s": 0.2}, delay_s=0.01, **LONG) as server, client_of(server.address) as client:
        call = client.generate(text="a", max_tokens=4000)
        next(call)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is Code.UNAVAILABLE and "has waited 0.2 s (--shutdown-timeout) for this request" in caught.value.details()
        assert server.end()[0] == 0


def test_health_names_services(client: Client) -> None:
    assert health(client) == health(client, SERVICE) == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        health(client, "llmx.v1.Gone")
    assert caught.value.code() is Code.NOT_FOUND


def test_reflection_describes_the_services(client: Client) -> None:
    database = ProtoReflectionDescriptorDatabase(client.channel)
    services = set(database.get_services())
    assert services == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    found = DescriptorPool(database).FindServiceByName(SERVICE)
    assert [method.name for method in found.methods] == ["Generate", "Embed", "ListModels"]
    own = message_type("GenerateRequest").DESCRIPTOR
    assert [field.name for field in found.methods[0].input_type.fields] == [field.name for field in own.fields]


def test_every_service_but_health_asks_for_a_key() -> None:
    with fake(server={"api_keys": ["right"]}) as server, client_of(server.address) as client:
        assert health(client) == SERVING
        for shown in ((), (("authorization", "Bearer wrong"),)):
            calls = client.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(iter([b""]), metadata=shown)
            later = client.channel.unary_unary("/a.service.of.Tomorrow/Call")
            for ask in (lambda calls=calls: list(calls), lambda later=later, shown=shown: later(b"", metadata=shown, timeout=HANG_S)):
                with pytest.raises(grpc.RpcError) as caught:
                    ask()
                assert caught.value.code() is Code.UNAUTHENTICATED
    with fake(server={"api_keys": ["right"]}) as server, client_of(server.address) as client:
        info = client.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        answer = next(info(iter([b"\x3a\x00"]), metadata=[("x-api-key", "right")], timeout=HANG_S))  # list_services
        assert SERVICE.encode() in answer


def test_many_clients_at_once(server: Fake) -> None:
    texts: list[str] = []

    def ask() -> None:
        with client_of(server.address) as client:
            texts.extend(client.text(text="a", max_tokens=30) for _ in range(3))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert texts == ["x" * 30] * 24 and server.state()["running"] == 0


def test_a_port_in_use_is_told_before_anything_loads() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use by another process: .* with --grpc-port") as told:
            listen(ServerConfig(port=0, grpc_port=port))
        assert told.value.field == "grpc_port"
    with pytest.raises(ConfigError, match=f"grpc_port is {port}, which is the port of HTTP"):
        listen(ServerConfig(port=port, grpc_port=port))


def test_an_end_while_it_loads() -> None:
    with fake(start_delay_s=HANG_S, wait=False) as server:
        server.process.send_signal(signal.SIGTERM)
        code, out, err = server.end()
        assert (code, out, err) == (0, "ended 0 True\n", "")


def test_without_the_library_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmx_server.listen.find_spec", lambda name: None if name == "grpc_health" else importlib.util.find_spec(name))
    with pytest.raises(ConfigError, match=r"grpc_health cannot be imported: install llmx-server\[grpc\]"):
        listen(ServerConfig(port=0, grpc_port=0))
    listen(ServerConfig(port=0)).close()


def test_it_is_not_read_without_its_port() -> None:
    code = "import sys, llmx_server.lifecycle, llmx_cli.serve; print([n for n in sys.modules if n.split('.')[0] in ('grpc', 'google', 'grpc_health')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True).stdout == "[]\n"


def test_empty_messages_are_messages(client: Client) -> None:
    assert message("ListModelsRequest").ByteSize() == 0 and client.one("ListModels").models

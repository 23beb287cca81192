"""TLS for HTTP, WebSockets and gRPC, with certificates that openssl makes here; files that cannot be used are told before anything loads."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_client import Fake, client_of, fake
from processes import HANG_S, llmx, until
from websockets.sync.client import connect

from llmx.config import ServerConfig
from llmx.errors import ConfigError
from llmx_server.listen import listen, url_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=HANG_S)


def signed(folder: Path, name: str) -> None:
    """NAME.pem and NAME.key, of 127.0.0.1, signed by ca.pem."""
    openssl(folder, "req", *NEW_KEY, "-keyout", f"{name}.key", "-out", "x.csr", "-subj", f"/CN={name}")
    (folder / "x.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "x.ext")
    openssl(folder, "x509", "-req", "-in", "x.csr", "-out", f"{name}.pem", *sign)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem signs server.pem and client.pem; other.pem signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        openssl(folder, "req", "-x509", *NEW_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    signed(folder, "server")
    signed(folder, "client")
    (folder / "both.pem").write_bytes((folder / "server.key").read_bytes() + (folder / "server.pem").read_bytes())
    openssl(folder, "pkey", "-in", "server.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    (folder / "empty").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def server(files: Path) -> Iterator[Fake]:
    with fake(server={"ssl_certfile": str(files / "server.pem"), "ssl_keyfile": str(files / "server.key")}) as running:
        yield running


def trusting(files: Path, client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files / "ca.pem"))
    if client:
        context.load_cert_chain(str(files / f"{client}.pem"), str(files / f"{client}.key"))
    return context


def test_http_and_streams(server: Fake, files: Path) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    with httpx.Client(verify=trusting(files), base_url=server.url) as client:
        body = {"prompt": "a", "max_tokens": 5}
        assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "hello"
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            assert sum(line.startswith("data: {") for line in answer.iter_lines()) == 5
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/health")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{server.url.replace('https', 'http')}/health")


def test_a_web_socket(server: Fake, files: Path) -> None:
    origin = server.url  # as the page at / has it
    with connect(server.url.replace("https", "wss") + "/v1/chat/ws", ssl=trusting(files), origin=origin) as opened:
        assert json.loads(opened.recv(timeout=HANG_S)) == {"type": "ready"}


def test_a_client_that_reads_nothing_is_cut_off(files: Path) -> None:
    settings = {"ssl_certfile": str(files / "both.pem"), "reader_timeout_s": 0.5, "drain_timeout_s": 0}
    body = json.dumps({"prompt": "a", "max_tokens": 3000, "n": 16, "logprobs": 20, "stream": True}).encode()  # 200 kB an event, 150 of them
    with fake(server=settings, tokens=3000, max_model_len=100_000, chunk=20) as server, closing(socket.socket()) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        with trusting(files).wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            until(lambda: server.state()["aborted"] == 1)
        assert server.state()["running"] == 0 and server.state()["generated"] < 16 * 3000
        server.process.terminate()
        assert "has not read its answer for 0.5 s (--reader-timeout): cut off" in server.end()[2]


def test_old_versions_are_refused(server: Fake, files: Path) -> None:
    context = trusting(files)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health", verify=context)


def test_grpc(server: Fake, files: Path) -> None:
    with client_of(server.address, credentials=grpc.ssl_channel_credentials((files / "ca.pem").read_bytes())) as client:
        assert client.text(text="a", max_tokens=5) == "hello"
    with client_of(server.address) as client, pytest.raises(AssertionError, match="UNAVAILABLE"):
        client.answers(text="a")


def test_clients_that_must_show_a_certificate(files: Path) -> None:
    settings = {"ssl_certfile": str(files / "both.pem"), "ssl_ca_certs": str(files / "ca.pem")}
    ca, own = (files / "ca.pem").read_bytes(), ((files / "client.key").read_bytes(), (files / "client.pem").read_bytes())
    with fake(server=settings) as server:
        assert httpx.get(f"{server.url}/health", verify=trusting(files, "client")).status_code == 200
        with client_of(server.address, credentials=grpc.ssl_channel_credentials(ca, *own)) as client:
            assert client.text(text="a", max_tokens=5) == "hello"
        for shown in ("", "other"):  # none, and one that nobody knows
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{server.url}/health", verify=trusting(files, shown))
        with client_of(server.address, credentials=grpc.ssl_channel_credentials(ca)) as client, pytest.raises(AssertionError, match="UNAVAILABLE"):
            client.answers(text="a")


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"ssl_keyfile": "server.key"}, "ssl_certfile", "ssl_certfile is missing"),
        ({"ssl_ca_certs": "ca.pem"}, "ssl_certfile", "ssl_certfile is missing"),
        ({"ssl_certfile": "gone.pem", "ssl_keyfile": "server.key"}, "ssl_certfile", "gone.pem': it cannot be read: No such file"),
        ({"ssl_certfile": "server.pem", "ssl_keyfile": "gone.key"}, "ssl_keyfile", "gone.key': it cannot be read: No such file"),
        ({"ssl_certfile": "server.pem", "ssl_keyfile": "other.key"}, "ssl_keyfile", "other.key': it is not the key of the certificate in '"),
        ({"ssl_certfile": "server.pem", "ssl_keyfile": "locked.key"}, "ssl_keyfile", "locked.key': the key is encrypted"),
        ({"ssl_certfile": "server.pem"}, "ssl_certfile", "server.pem': it holds no private key in PEM, so ssl_keyfile must name"),
        ({"ssl_certfile": "server.key", "ssl_keyfile": "server.key"}, "ssl_keyfile", "server.key': it holds no certificate in PEM"),
        ({"ssl_certfile": "server.pem", "ssl_keyfile": "empty"}, "ssl_keyfile", "empty': it holds no private key in PEM"),
        ({"ssl_certfile": "both.pem", "ssl_ca_certs": "empty"}, "ssl_ca_certs", "empty': it holds no certificates in PEM"),
        ({"ssl_certfile": "both.pem", "ssl_ca_certs": "gone.pem"}, "ssl_ca_certs", "gone.pem': it cannot be read"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used(files: Path, settings: dict[str, str], field: str, words: str) -> None:
    given = {name: str(files / file) for name, file in settings.items()}
    with pytest.raises(ConfigError) as told:
        listen(ServerConfig(port=0, **given))  # type: ignore[arg-type]
    assert words in str(told.value) and told.value.field == field


def test_the_command_says_it_in_one_line(files: Path) -> None:
    done = llmx("serve", "--port", "0", "--ssl-certfile", str(files / "server.pem"), "--ssl-keyfile", str(files / "other.key"))
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "it is not the key of the certificate in" in done.stderr


def test_without_files_nothing_of_it_is_read() -> None:
    code = "import sys; from llmx.config import ServerConfig; from llmx_server.listen import listen; import llmx_server.lifecycle; "
    code += "listen(ServerConfig(port=0)).close(); print('llmx_server.tls' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True).stdout == "False\n"


def test_urls() -> None:
    with closing(listen(ServerConfig(port=0))) as server:
        assert url_of(server, "/v", "https") == f"https://127.0.0.1:{server.getsockname()[1]}/v"

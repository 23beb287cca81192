"""A Unix socket instead of host and port."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from llmx.config import ServerConfig
from llmx.errors import ConfigError
from llmx_server.listen import bind_unix, listen, url_of


def test_a_client_reaches_it(tmp_path: Path) -> None:
    path = str(tmp_path / "llmx.sock")
    with closing(listen(ServerConfig(uds=path))) as server, closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(path)
        assert url_of(server, "/api") == f"unix:{path}"


def test_what_a_dead_server_left_is_replaced_but_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "llmx.sock"
    bind_unix(str(path)).close()  # the file stays
    assert path.exists()
    with closing(bind_unix(str(path))), pytest.raises(ConfigError, match="another server listens there"):
        bind_unix(str(path))


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (path := tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="a file that is no socket"):
        bind_unix(str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize("path", ["missing-folder/x.sock", "x" * 200])
def test_a_path_that_cannot_be(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen there"):
        bind_unix(str(tmp_path / path))


def test_tcp_without_uds() -> None:
    with closing(listen(ServerConfig(port=0))) as server:
        assert url_of(server, "/v") == f"http://127.0.0.1:{server.getsockname()[1]}/v"
    assert not os.path.exists("llmx.sock")

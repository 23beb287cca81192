"""The file by which engines of one server share threads: there for all that start while the server lives, and no trace of it later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmx.config import EngineConfig
from llmx.engine.messages import Configure, decoder, encode
from llmx.engine.shared_threads import SharedThreads


def file_of(config: EngineConfig) -> tuple[str, int]:
    assert config.platform.shared_threads is not None
    return config.platform.shared_threads


def test_engines_get_one_file_and_the_number(tmp_path: Path) -> None:
    shared = SharedThreads(3)
    one, other = shared.shared(EngineConfig()), shared.shared(EngineConfig())
    file, threads = file_of(one)
    assert one == other and threads == 3 and os.stat(file).st_size == 0
    Path(file).write_bytes(b"x")
    assert Path(file_of(other)[0]).read_bytes() == b"x"
    assert file_of(SharedThreads(None).shared(EngineConfig()))[1] == 0
    shared.close()
    shared.close()
    assert not os.path.exists(file) and shared.shared(EngineConfig()) == EngineConfig()


def test_it_reaches_the_engine_process() -> None:
    shared = SharedThreads(2)
    config = shared.shared(EngineConfig())
    assert decoder(Configure).decode(encode(Configure(config, []))).config.platform.shared_threads == config.platform.shared_threads
    shared.close()


def test_a_system_without_such_files_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert SharedThreads(2).shared(EngineConfig()) == EngineConfig()

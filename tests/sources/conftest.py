"""A hub on localhost, a cache in a temporary folder, small models for it, and a network that is not there."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llmx.weights.hub import Hub
from llmx.weights.hub_cache import HubCache
from tests.sources.fake_hub import FakeHub, Repo, fake_hub

SIDE = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}',
    "tokenizer.json": b"{}",
    "README.md": b"---\nlicense: mit\n---\n# M\n",
}


def safetensors(size: int = 8192, seed: int = 0, name: str = "x") -> bytes:
    """A safetensors file with one tensor of `size` bytes."""
    header = json.dumps({name: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + np.random.default_rng(seed).bytes(size)


def sharded(shards: int = 3) -> dict[str, bytes]:
    """Files of a sharded checkpoint with one tensor in each shard."""
    names = [f"model-{index:05d}-of-{shards:05d}.safetensors" for index in range(1, shards + 1)]
    files = {file: safetensors(seed=index, name=f"t{index}") for index, file in enumerate(names)}
    index = json.dumps({"metadata": {}, "weight_map": {f"t{index}": file for index, file in enumerate(names)}})
    return {**SIDE, **files, "model.safetensors.index.json": index.encode()}


@pytest.fixture
def gguf_file(tmp_path: Path) -> Callable[..., bytes]:
    """gguf_file(seed) -> a GGUF file with one Q8_0 tensor of 8,704 bytes."""

    def make(seed: int = 0) -> bytes:
        path = tmp_path / f"made-{seed}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(256)
        writer.add_string("general.license", "apache-2.0")
        values = np.random.default_rng(seed).normal(size=(256, 32)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor("token_embd.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()

    return make


@pytest.fixture
def hub_server() -> Iterator[FakeHub]:
    """The server, empty."""
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def hub(hub_server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub as the product sees it. No token of this machine reaches it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    hub_server.repos["org/plain"] = Repo({**SIDE, "model.safetensors": safetensors()})
    return Hub(HubCache(str(tmp_path / "cache")), endpoint=hub_server.url)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every socket that anyone opens from now on: recorded, and refused."""
    opened: list[Any] = []

    def refuse(*given: Any, **named: Any) -> Any:
        opened.append(given)
        raise AssertionError(f"a socket was opened: {given}")

    for target in ("socket.socket.__init__", "socket.socket.connect", "socket.create_connection", "socket.getaddrinfo"):
        monkeypatch.setattr(target, refuse)
    with pytest.raises(AssertionError, match="a socket was opened"):
        socket.socket()
    opened.clear()
    return opened


@pytest.fixture
def blocked_environment(tmp_path: Path) -> dict[str, str]:
    """Variables for a child process in which connecting to anything but a local file socket ends the process with status 99."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, socket, sys\n"
        "def refuse(*given, **named):\n"
        "    sys.stderr.write(f'a connection was tried: {given}\\n'); sys.stderr.flush(); os._exit(99)\n"
        "class Socket(socket.socket):\n"
        "    def connect(self, address):\n"
        "        return refuse(address) if self.family != socket.AF_UNIX else super().connect(address)\n"
        "    connect_ex = connect\n"
        "socket.socket = Socket\n"
        "socket.create_connection = refuse\n"
    )
    return {"PYTHONPATH": str(folder), "PYTHON": sys.executable}

"""Safetensors: what the safetensors package writes is read exactly, bf16 too; what is broken is refused by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from llmx.errors import ModelError
from llmx.weights.quant import dequantize
from llmx.weights.safetensors import SafetensorsFile, SafetensorsSource, checkpoint_files

WriteHf = Callable[..., Path]


def assemble(header: Any, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values_equal_what_the_safetensors_package_reads(write_hf: WriteHf, dtype: str) -> None:
    directory = write_hf(dtype=dtype)
    source = SafetensorsSource(str(directory))
    with safe_open(directory / "model.safetensors", framework="numpy") as oracle:
        assert set(source.names()) == set(oracle.keys())
        for name in oracle.keys():  # noqa: SIM118 - not a dict
            wanted = oracle.get_tensor(name)
            assert source.shape(name) == wanted.shape
            np.testing.assert_array_equal(dequantize(source.raw(name)), wanted.astype(np.float32))


def test_bf16_needs_no_torch(write_hf: WriteHf) -> None:
    values = {"model.norm.weight": np.linspace(-3, 3, 64, dtype=np.float32)}
    source = SafetensorsSource(str(write_hf(tensors=values)))
    got = dequantize(source.raw("model.norm.weight"))
    assert str(source.quant("model.norm.weight")) == "bf16"
    np.testing.assert_allclose(got, values["model.norm.weight"], rtol=2**-8)
    assert not source.raw("model.norm.weight").data.flags.owndata


def test_shards_are_one_checkpoint(write_hf: WriteHf) -> None:
    one, three = SafetensorsSource(str(write_hf())), SafetensorsSource(str(write_hf(shards=3, folder="sharded")))
    assert set(one.names()) == set(three.names())
    for name in one.names():
        np.testing.assert_array_equal(one.raw(name).data, three.raw(name).data)


def test_a_missing_shard_is_named(write_hf: WriteHf) -> None:
    directory = write_hf(shards=2)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="model-00002-of-00002.safetensors: this shard is missing"):
        SafetensorsSource(str(directory))


def test_a_cut_shard_is_named(write_hf: WriteHf) -> None:
    directory = write_hf(shards=2)
    shard = directory / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1024])
    with pytest.raises(ModelError, match="model-00001-of-00002.safetensors: .*cut off"):
        SafetensorsSource(str(directory))


def test_an_index_that_places_a_tensor_wrongly_is_refused(write_hf: WriteHf) -> None:
    directory = write_hf(shards=2)
    index = directory / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["model.norm.weight"] = next(f for f in set(table["weight_map"].values()) if f != table["weight_map"]["model.norm.weight"])
    index.write_text(json.dumps(table))
    with pytest.raises(ModelError, match="'model.norm.weight' in this file, which does not hold it"):
        SafetensorsSource(str(directory))


@pytest.mark.parametrize("shard", ["../evil.safetensors", "/etc/passwd", "", 7])
def test_an_index_cannot_leave_its_directory(write_hf: WriteHf, shard: Any) -> None:
    directory = write_hf(shards=2)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ModelError, match="only a file name in the same directory"):
        SafetensorsSource(str(directory))


def test_a_tensor_in_two_shards_is_refused(write_hf: WriteHf) -> None:
    directory = write_hf(shards=2)
    (directory / "model-00002-of-00002.safetensors").write_bytes((directory / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(ModelError, match="is also in"):
        SafetensorsSource(str(directory))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\1\2", "cut off or no safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS pointer"),
        (struct.pack("<Q", 2**40) + b"{}", "header should be"),
        (struct.pack("<Q", 50) + b"{}", "header should be 50 bytes"),
        (assemble(b"{nope"), "not JSON"),
        (assemble(b"[" * 100_000), "not JSON"),
        (assemble(b"\xff\xfe{}"), "not JSON"),
        (assemble([1]), "not a JSON object"),
        (assemble(b'{"w": %s, "w": %s}' % ((json.dumps(entry(0, 4, [1])).encode(),) * 2), bytes(4)), "'w' stands twice"),
        (assemble({"w": entry(0, 16, [4])}, bytes(12)), "cut off"),
        (assemble({"w": entry(0, 16, [4])}, bytes(20)), "corrupt"),
        (assemble({"w": entry(0, 12, [4])}, bytes(12)), "cannot take bytes 0 to 12"),
        (assemble({"w": entry(0, 16, [4]), "v": entry(8, 24, [4])}, bytes(24)), "overlaps"),
        (assemble({"w": entry(0, 16, [4]), "v": entry(20, 36, [4])}, bytes(36)), "gap"),
        (assemble({"w": entry(16, 0, [4])}, bytes(16)), "cannot take"),
        (assemble({"w": entry(0, 16, [4], "F13")}, bytes(16)), "unknown dtype 'F13'"),
        (assemble({"w": entry(0, 16, [-4])}, bytes(16)), "malformed"),
        (assemble({"w": entry(0, 16, [True])}, bytes(16)), "malformed"),
        (assemble({"w": entry(0, 2**63, [2**61])}, bytes(16)), "malformed|cut off"),
        (assemble({"w": {"shape": [4]}}, bytes(16)), "malformed"),
        (assemble({"w": 3}), "malformed"),
    ],
)  # fmt: skip
def test_broken_files_are_refused_with_file_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        SafetensorsFile(str(path))
    assert str(caught.value).startswith(str(path))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_gives_an_error_or_a_consistent_file(write_hf: WriteHf, tmp_path: Path, data: st.DataObject) -> None:
    directory = tmp_path / "hf"
    content = bytearray(((directory if directory.exists() else write_hf()) / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, min(header, len(content)) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    try:
        file = SafetensorsFile(str(path))
        tensors = [file.tensor(name) for name in file.tensors]
    except ModelError:
        return
    assert sum(tensor.nbytes for tensor in tensors) + 8 + int.from_bytes(content[:8], "little") == len(content)


def test_dtypes_that_are_no_weights_are_refused_when_used(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(assemble({"mask": entry(0, 4, [4], "BOOL"), "scalar": entry(4, 12, [], "I64"), "none": entry(12, 12, [0, 4])}, bytes(12)))
    source = SafetensorsSource(str(tmp_path))
    assert source.raw("scalar").shape == () and source.raw("none").nbytes == 0
    for use in (source.raw, source.quant):
        with pytest.raises(ModelError, match="'mask'.*bool"):
            use("mask")


def test_pickled_weights_are_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(ModelError, match="pytorch_model.bin.*can run code.*safe_serialization"):
        checkpoint_files(str(tmp_path))


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(assemble({}))
    with pytest.raises(ModelError, match="index of the checkpoint is missing"):
        checkpoint_files(str(tmp_path))

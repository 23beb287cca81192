"""GGUF files: what the gguf package writes is read exactly; what is broken is refused by name, never half read."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmx.errors import ModelError
from llmx.weights.gguf import GgufFile
from llmx.weights.gguf_source import GgufSource
from llmx.weights.quant import dequantize

WriteGguf = Callable[..., Path]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def assemble(pairs: list[bytes] = [], infos: list[bytes] = [], data: bytes = b"", version: int = 3) -> bytes:  # noqa: B006 - read only
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture
def refuse(tmp_path: Path) -> Callable[[bytes, str], None]:
    def check(content: bytes, reason: str) -> None:
        path = tmp_path / "broken.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=reason) as caught:
            GgufFile(str(path))
        assert str(caught.value).startswith(str(path))

    return check


def test_tensors_equal_what_the_gguf_package_reads(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    file, oracle = GgufFile(str(path)), gguf.GGUFReader(path)
    assert set(file.tensors) == {tensor.name for tensor in oracle.tensors}
    for tensor in oracle.tensors:
        wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        got = file.tensor(tensor.name)
        assert got.shape == tuple(reversed(tensor.shape.tolist()))
        np.testing.assert_array_equal(dequantize(got).reshape(wanted.shape), wanted)


def test_metadata_of_every_kind(write_gguf: WriteGguf) -> None:
    strings = ["", "a", "Ġ t", "猫👩‍🚀", "x" * 70_000]
    extra = {"t.flag": True, "t.text": "né", "t.float": 0.5, "t.minus": -1, "t.strings": strings, "t.ints": [1, -2, 3], "t.nested": [[1, 2], [3, 4]]}
    metadata = GgufFile(str(write_gguf(extra=extra))).metadata
    assert metadata["t.flag"] is True and metadata["t.text"] == "né" and metadata["t.float"] == 0.5 and metadata["t.minus"] == -1
    assert len(metadata["t.strings"]) == 5 and metadata["t.strings"].decode() == strings
    assert metadata["t.ints"].tolist() == [1, -2, 3] and [row.tolist() for row in metadata["t.nested"]] == [[1, 2], [3, 4]]


def test_version_2_is_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    path.write_bytes(assemble([pair("a", 4, struct.pack("<I", 7))], [info("w", (2, 3), 0, 0)], np.arange(6, dtype="<f4").tobytes(), version=2))
    file = GgufFile(str(path))
    assert (file.version, file.metadata) == (2, {"a": 7})
    np.testing.assert_array_equal(dequantize(file.tensor("w")), np.arange(6, dtype=np.float32).reshape(3, 2))


@pytest.mark.parametrize("count", [49_152, 262_144])
def test_header_is_read_in_one_cheap_pass(tmp_path: Path, count: int) -> None:
    tokens = b"".join(text(f"token {i}") for i in range(count))
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(assemble([pair("tokens", 9, struct.pack("<IQ", 8, count) + tokens)]))
    start = time.perf_counter()
    file = GgufFile(str(path))
    took = time.perf_counter() - start
    assert len(file.metadata["tokens"]) == count and file.metadata["tokens"].decode()[-1] == f"token {count - 1}"
    assert took < 3.0  # 5 ms and 25 ms were measured; the limit is a guard against a return to seconds


def test_data_is_a_view_of_the_file_and_outlives_close(write_gguf: WriteGguf) -> None:
    file = GgufFile(str(write_gguf()))
    tensor = file.tensor("token_embd.weight")
    assert not tensor.data.flags.owndata and not tensor.data.flags.writeable
    before = tensor.data.copy()
    file.close()
    np.testing.assert_array_equal(tensor.data, before)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "LFS pointer"),
        (b"PK\x03\x04 not a model at all", "not a GGUF file"),
        (b"GG", "not a GGUF file|cut off"),
        (b"GGUF" + struct.pack("<I", 1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3), "big endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "metadata pairs"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "tensors"),
        (assemble([pair("a", 4, b"\1\0\0\0")])[:40], "cut off"),
        (assemble([pair("a", 9, struct.pack("<IQ", 4, 2**62))]), "declares"),
        (assemble([pair("a", 9, struct.pack("<IQ", 8, 3) + struct.pack("<Q", 2**63) * 3)]), "cut off"),
        (assemble([pair("a", 8, struct.pack("<Q", 2**64 - 1) + b"xx")]), "cut off"),
        (assemble([pair("a", 77, b"")]), "value type 77"),
        (assemble([pair("a", 9, struct.pack("<IQ", 9, 1) * 9)]), "value type 9"),
        (assemble([pair("a", 4, b"\1\0\0\0"), pair("a", 4, b"\2\0\0\0")]), "'a' stands twice"),
        (assemble([struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 1)]), "UTF-8"),
        (assemble([pair("general.alignment", 4, struct.pack("<I", 24))]), "alignment is 24"),
        (assemble([pair("general.alignment", 8, text("x"))]), "alignment is 'x'"),
        (assemble(infos=[info("w", (4,), 0, 0)] * 2, data=bytes(32)), "'w' stands twice"),
        (assemble(infos=[info("w", (4,), 0, 0)], data=bytes(15)), "'w' ends at byte .* cut off"),
        (assemble(infos=[info("w", (4,), 0, 8)], data=bytes(64)), "offset 8"),
        (assemble(infos=[info("w", (4,), 0, 2**64 - 32)], data=bytes(64)), "'w' ends at byte"),
        (assemble(infos=[info("w", (2**40, 2**40), 0, 0)], data=bytes(64)), "'w' ends at byte"),
        (assemble(infos=[info("w", (0,), 0, 0)], data=bytes(64)), r"shape \[0\]"),
        (assemble(infos=[info("w", (40,), 3, 0)], data=bytes(64)), "multiple of 32"),
        (assemble(infos=[info("w", (1,) * 5, 0, 0)], data=bytes(64)), "5 dimensions"),
        (assemble(infos=[info("w", (16,), 0, 0), info("v", (16,), 0, 32)], data=bytes(128)), "overlap"),
        (assemble(infos=[info("blk.0.ffn_up.weight", (256,), 19, 0)], data=bytes(256)), "'blk.0.ffn_up.weight' has type iq1_s .19.; supported: bf16, .*q8_0"),
        (assemble(infos=[info("w", (256,), 99, 0)], data=bytes(256)), "type number .99."),
    ],
)
def test_broken_files_are_refused_with_file_and_reason(refuse: Callable[[bytes, str], None], content: bytes, reason: str) -> None:
    refuse(content, reason)


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        GgufFile(str(tmp_path / "none.gguf"))
    with pytest.raises(ModelError, match="directory|regular"):
        GgufFile(str(tmp_path))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_gives_an_error_or_a_consistent_model(write_gguf: WriteGguf, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "whole.gguf"
    if not path.exists():
        extra = {"tokenizer.ggml.tokens": ["a", "bb", "ccc"], "tokenizer.ggml.scores": [0.5, 1.5, 2.5], "n": [[1], [2]]}
        path.write_bytes(write_gguf(extra=extra).read_bytes())
    content = bytearray(path.read_bytes())
    header = GgufFile(str(path)).tensors["token_embd.weight"].start
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            at = data.draw(st.integers(0, min(header, len(content)) - 1))
            content[at] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    try:
        source = GgufSource(str(damaged))
        for key, value in source.metadata.items():
            assert isinstance(key, str)
            if hasattr(value, "decode"):
                assert len(value.decode()) == len(value)
    except ModelError:
        return
    for name in source.names():  # every byte that the header promises is there
        tensor = source.raw(name)
        assert tensor.data.nbytes == tensor.nbytes and int(tensor.data.sum(dtype=np.uint64)) >= 0
        assert tensor.rows * tensor.cols == int(np.prod(tensor.shape))


def test_split_files_are_one_model(write_gguf: WriteGguf, tmp_path: Path) -> None:
    whole = GgufSource(str(write_gguf()))
    paths = split(write_gguf, tmp_path, 3)
    for path in paths:
        source = GgufSource(str(path))
        assert set(source.names()) == set(whole.names()) and source.config == whole.config
        for name in whole.names():
            np.testing.assert_array_equal(source.raw(name).data, whole.raw(name).data)


def test_a_missing_shard_is_named(write_gguf: WriteGguf, tmp_path: Path) -> None:
    paths = split(write_gguf, tmp_path, 3)
    paths[1].unlink()
    with pytest.raises(ModelError, match=r"part-00002-of-00003\.gguf: this shard .* is missing"):
        GgufSource(str(paths[0]))


def test_shards_of_another_order_or_model_are_refused(write_gguf: WriteGguf, tmp_path: Path) -> None:
    paths = split(write_gguf, tmp_path, 3)
    second, third = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(third), paths[2].write_bytes(second)
    with pytest.raises(ModelError, match="its place is 1 of 3"):
        GgufSource(str(paths[0]))
    paths[1].write_bytes(second), paths[2].write_bytes(second)
    with pytest.raises(ModelError, match="is also in"):
        GgufSource(str(paths[0]))


def split(write_gguf: WriteGguf, folder: Path, count: int) -> list[Path]:
    """The tiny model as `count` files, as llama.cpp's gguf-split writes them."""
    from gguf import GGUFReader

    whole = GGUFReader(write_gguf())
    paths = []
    for index in range(count):
        path = folder / f"part-{index + 1:05d}-of-{count:05d}.gguf"
        if index == 0:
            path = write_gguf(path.name, tensors={}, extra={"split.no": 0, "split.count": count, "split.tensors.count": len(whole.tensors)})
        else:
            writer = gguf.GGUFWriter(path, "llama")
            writer.add_uint16("split.no", index), writer.add_uint16("split.count", count)
            for tensor in whole.tensors[index - 1 :: count - 1]:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
        paths.append(path)
    return paths


def test_types_that_are_no_weights_are_named_when_used(write_gguf: WriteGguf) -> None:
    path = write_gguf()
    content = path.read_bytes()
    at = content.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8  # dimensions: count, one size; then the type
    path.write_bytes(content[:at] + struct.pack("<I", 26) + content[at + 4 :])
    with pytest.raises(ModelError, match="model.gguf: tensor 'output_norm.weight': 'i32' is no weight format"):
        GgufSource(str(path)).quant("model.norm.weight")

"""The cache of merges: the same tokenizer with it, and no file may break a start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tokens.conftest import Strings

from llmx.resolve import resolve
from llmx.tokens import merge_cache
from llmx.tokens.merge_cache import cached_merges
from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer

TOKENS, SCORES = ["a", "b", "ab", "ba"], np.array([0.0, 0.0, -1.0, -2.0])
MERGES = np.array([[0, 1], [1, 0]], np.int32)


class Build:
    """Counts how often the merges were built."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> np.ndarray:
        self.times += 1
        return MERGES


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_cache, "LARGE", 4)


def test_built_once_and_read_back(tmp_path: Path) -> None:
    build, folder = Build(), str(tmp_path / "new" / "folder")
    for _ in range(3):
        np.testing.assert_array_equal(cached_merges(folder, TOKENS, SCORES, build), MERGES)
    assert build.times == 1
    cached_merges(folder, TOKENS, SCORES - 1, build)  # another vocabulary
    cached_merges(folder, [*TOKENS[:3], "bb"], SCORES, build)
    assert build.times == 3 and len(list(Path(folder).iterdir())) == 3
    assert all(path.name.startswith("merges-v1-") for path in Path(folder).iterdir())


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "folder"])
def test_a_damaged_file_is_built_again(tmp_path: Path, damage: str) -> None:
    build = Build()
    cached_merges(str(tmp_path), TOKENS, SCORES, build)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        data[40] ^= 1
        path.write_bytes({"cut": data[:-3], "changed": data, "empty": b""}[damage])
    for times in (2, 3 if damage == "folder" else 2):
        np.testing.assert_array_equal(cached_merges(str(tmp_path), TOKENS, SCORES, build), MERGES)
        assert build.times == times


def test_a_folder_that_cannot_be_written_is_fine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    build = Build()
    for folder in (str(tmp_path / "file"), "/proc/self/nowhere", None):
        np.testing.assert_array_equal(cached_merges(folder, TOKENS, SCORES, build), MERGES)
    assert build.times == 3


def test_tokenizers_with_and_without_the_file_are_the_same(tmp_path: Path) -> None:
    pieces = ["<unk>", "▁", "a", "b", "c", "ab", "▁a", "▁ab", "bc", "abc", "ca"]
    table = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.scores": -np.arange(len(pieces), dtype=np.float32),
        "tokenizer.ggml.tokens": Strings(pieces), "tokenizer.ggml.token_type": np.array([2] + [1] * (len(pieces) - 1), np.int32),
    }  # fmt: skip
    ids = []
    for folder in (None, str(tmp_path), str(tmp_path)):
        tokenizer = Tokenizer.load(TokenizerSource("tiny.gguf", table, cache_dir=folder))
        ids.append([tokenizer.encode(text) for text in ("abc ab", "bcabca", "a b c")])
    assert ids[0] == ids[1] == ids[2] and list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/llmx"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/llmx"),  # the specification: such a value is ignored
        ({"HOME": "/h"}, "/h/.cache/llmx"),
        ({}, None),
        ({"LLMX_CACHE_DIR": "/own", "HOME": "/h"}, "/own"),
    ],
)
def test_the_folder_follows_the_environment(environ: dict[str, str], folder: str | None) -> None:
    assert resolve({}, environ=environ)[0].model.cache_dir == folder

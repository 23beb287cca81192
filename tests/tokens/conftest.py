"""Tokenizers of the tests: SmolLM2's own, and small SentencePiece-like ones written here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmx.config import ModelConfig
from llmx.models.load import read_model_info
from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer


class Strings(list):
    """A list with the one method that arrays of strings of a GGUF file have."""

    def decode(self) -> list[str]:
        return list(self)


@pytest.fixture(scope="session")
def smollm2_source() -> TokenizerSource:
    return read_model_info(ModelConfig()).tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_source: TokenizerSource) -> Tokenizer:
    return Tokenizer.load(smollm2_source)


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """A vocabulary of words with "▁" for spaces, bytes as <0xNN>, and scores: what a Llama 2 file holds, in small."""
    words = ["▁the", "▁t", "he", "▁a", "▁b", "▁▁", "▁▁▁", "é", "猫", "▁", *"abcdefghijklmnopqrstuvwxyz.,!", "th", "an", "ing", "in", "<tool>"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [2, 3, 3, *[6] * 256, *[4 if word == "<tool>" else 1 for word in words]]
    scores = [0.0] * 259 + [float(-index) for index in range(len(words))]
    table = {
        "model": "llama", "tokens": Strings(tokens), "token_type": np.array(types), "scores": np.array(scores, np.float32),
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in (table | changes).items() if value is not ...}


@pytest.fixture
def sentencepiece() -> Callable[..., Tokenizer]:
    """sentencepiece(**changes of tokenizer.ggml.*) -> Tokenizer."""
    return lambda **changes: Tokenizer.load(TokenizerSource("tiny.gguf", sentencepiece_metadata(**changes)))


@pytest.fixture
def write_tokenizer(tmp_path: Path) -> Callable[..., Path]:
    """write_tokenizer(backend, config={}, files={}) -> directory with tokenizer.json and tokenizer_config.json."""

    def write(backend: Any, config: dict[str, Any] | None = None, files: dict[str, str] | None = None) -> Path:
        if backend is not None:
            backend.save(str(tmp_path / "tokenizer.json"))
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        for name, text in (files or {}).items():
            (tmp_path / name).write_text(text)
        return tmp_path

    return write

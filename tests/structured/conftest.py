"""A tiny random model with a small byte-level vocabulary, and grammars over it or over SmolLM2's vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmx import LLM
from llmx.config import ModelConfig
from llmx.models.load import read_model_info
from llmx.structured import TokenTable
from llmx.structured.manager import Grammars
from llmx.structured.token_table import token_table
from llmx.tokens.tokenizer import Tokenizer
from llmx_llguidance.backend import LLGuidanceBackend
from tests.structured.tiny import TINY_VOCAB, write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 2 layers with random weights, its vocabulary longer than its tokenizer's."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_table(tiny_folder: Path) -> TokenTable:
    summary = read_model_info(ModelConfig(source=str(tiny_folder)))
    assert summary.vocab_size == TINY_VOCAB
    return token_table(Tokenizer.load(summary.tokenizer), summary.vocab_size, summary.eos_ids)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(model=str(tiny_folder), platform="cpu", threads=1, max_model_len=512, num_blocks=2000, max_num_seqs=64) as llm:
        yield llm


@pytest.fixture(scope="session")
def grammars(tiny_table: TokenTable) -> Iterator[Grammars]:
    made = Grammars([("llguidance", LLGuidanceBackend)], lambda: tiny_table)
    yield made
    made.close()

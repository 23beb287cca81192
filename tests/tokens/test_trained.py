"""Tokenizers trained here, written to GGUF and read back: byte-level BPE against the library that trained it, SentencePiece
against the algorithm written out."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.tokens.script_strings import SCRIPTS, strings_of
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer
from llmx.weights.gguf import GgufFile

PROMPTS: list[str] = json.loads((Path(__file__).parents[1] / "quality/prompts.json").read_text())
TEXTS = [*PROMPTS[::7], *(text for script in SCRIPTS for text in strings_of(script)[:10]), "", " ", "a", "  two  spaces\n\n", "naïve 猫 🙂"]


def written(path: Path, kind: str, tokens: list[str], types: list[int], scores: list[float] | None = None, merges: list[str] | None = None) -> TokenizerSource:
    """The metadata as llama.cpp's converter writes it, read back by llmx's reader."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("gpt-2" if kind == "gpt2" else "default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores is not None:
        writer.add_token_scores(scores)
        writer.add_unk_token_id(0)
    if merges is not None:
        writer.add_token_merges(merges)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return TokenizerSource(str(path), GgufFile(str(path)).metadata)


def test_byte_level_bpe(tmp_path: Path) -> None:
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(PROMPTS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    assert len(merges) > 300
    tokenizer = Tokenizer.load(written(tmp_path / "bpe.gguf", "gpt2", tokens, [1] * len(tokens), merges=merges))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == trained.encode(text).ids, text
        assert tokenizer.decode(ids) == text


def sentencepiece_ids(text: str, table: dict[str, int], scores: list[float]) -> list[int]:
    """SentencePiece's BPE: again and again join the neighbours whose piece has the best score, the leftmost of equals; what is no
    piece becomes its bytes."""
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [(-scores[table[a + b]], i) for i, (a, b) in enumerate(zip(pieces, pieces[1:], strict=False)) if a + b in table]
        if not joins:
            break
        at = min(joins)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [i for piece in pieces for i in ([table[piece]] if piece in table else [table[f"<0x{byte:02X}>"] for byte in piece.encode()])]


@pytest.mark.parametrize("size", [400, 900])
def test_sentencepiece_bpe(tmp_path: Path, size: int) -> None:
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(PROMPTS, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    pieces = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    tokenizer = Tokenizer.load(written(tmp_path / "spm.gguf", "llama", tokens, types, scores))
    table = {token: i for i, token in enumerate(tokens)}
    assert np.mean([len(tokenizer.encode(text)) / len(text) for text in PROMPTS]) < 0.7  # pieces are joined at all
    for text in TEXTS:
        if text:
            assert tokenizer.encode(text) == sentencepiece_ids(text, table, scores), text
        assert tokenizer.decode(tokenizer.encode(text)) == text

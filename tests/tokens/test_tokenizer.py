"""Ids equal those of the published tokenizers; bytes of tokens are exact."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from llmx.errors import ModelError, RequestError
from llmx.tokens.byte_level import BYTE_OF
from llmx.tokens.pre_tokenizers import PRE_TOKENIZERS
from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer

TEXTS = [
    "", " ", "a", " a", "  a    b .\n\n  c", "12345 67 1,000.5", "\n\n 6", "² ½ x²", "don't we'll I'M", "def f(x):\n    return x**2  # ok\r\n",
    "a\r\nb\r\n\r\nc", "\t\ttabs", "trailing   ", "你好，世界", "日本語のテキスト", "한국어", "مرحبا بالعالم", "हिन्दी", "👩‍🚀 👍🏽 🇩🇪", "é e\u0301 ﬁ",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|> x<|im_end|>  y", "a<|endoftext|>b", "<|im_start", "\u00a0nbsp\u3000wide\u200dzwj", "\x00\x1b[0m",
]  # fmt: skip
POOL = "abcXYZ  0123456789\n\r\t.,!?'\"-_()[]{}<>/\\|@#$%^&*~`éßñ猫犬한국어العربيةहिन्दी👩‍🚀👍🏽🇩🇪\u200d\u00a0\u3000½²"


def random_texts(count: int) -> list[str]:
    choose = random.Random(0)
    return ["".join(choose.choice(POOL) for _ in range(choose.randint(1, 60))) for _ in range(count)]


@pytest.fixture(scope="module")
def reference(smollm2_source: TokenizerSource):
    """transformers' reading of the same file, with the pre-tokenizer of SmolLM2's published tokenizer.json (GGUF files do not carry it)."""
    transformers = pytest.importorskip("transformers")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    path = Path(smollm2_source.path)
    found = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    found.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return found


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_ids_and_texts_equal_transformers(smollm2: Tokenizer, reference) -> None:
    for text in [*TEXTS, *random_texts(300)]:
        ids = smollm2.encode(text)
        assert ids == reference.encode(text), text
        assert smollm2.decode(ids, skip_special_tokens=False) == text
        for skip in (True, False):
            assert smollm2.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.filterwarnings("ignore")
def test_decoding_random_ids_equals_transformers(smollm2: Tokenizer, reference) -> None:
    choose = random.Random(1)
    for _ in range(300):
        ids = [choose.randrange(smollm2.vocab_size) for _ in range(choose.randint(0, 12))]
        assert smollm2.decode(ids, False) == reference.decode(ids, skip_special_tokens=False)


def test_facts_of_smollm2(smollm2: Tokenizer) -> None:
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.eos_ids, smollm2.add_bos) == (49152, 1, (2,), False)
    assert smollm2.names["eos_token"] == "<|im_end|>" and smollm2.token_id("<|im_start|>") == 1
    assert [token for token in range(20) if smollm2.is_special(token)] == list(range(17))
    assert smollm2.encode("hi <|im_end|>") == [*smollm2.encode("hi "), 2]


def test_token_bytes_are_exact(smollm2: Tokenizer) -> None:
    text = "naïve 👩‍🚀  猫\r\n"
    assert b"".join(smollm2.token_bytes(token) for token in smollm2.encode(text)) == text.encode()
    assert smollm2.token_bytes(2) == b"<|im_end|>" and smollm2.token_bytes(49152) == b""
    singles = {smollm2.token_bytes(token) for token in range(smollm2.vocab_size)}
    assert {bytes([byte]) for byte in range(0x20, 0xC0)} <= singles
    with pytest.raises(IndexError):
        smollm2.token_bytes(-1)


def test_a_piece_of_a_character_alone_is_one_replacement(smollm2: Tokenizer) -> None:
    pieces = smollm2.encode("👩")
    assert len(pieces) > 1 and all("\ufffd" in smollm2.token_text(token) for token in pieces)
    assert smollm2.decode_each(smollm2.encode("a b")) == ["a", " b"]


def test_the_byte_alphabet_covers_every_byte_once() -> None:
    assert sorted(BYTE_OF.values()) == list(range(256)) and len(BYTE_OF) == 256
    backend = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert set(BYTE_OF) == set(backend.alphabet())
    for char in ("a", " ", "é", "猫", "\x00", "\xad"):
        spelled = backend.pre_tokenize_str(char)[0][0]
        assert bytes(BYTE_OF[c] for c in spelled) == char.encode()


def test_construction_is_fast(smollm2_source: TokenizerSource) -> None:
    start = time.perf_counter()
    Tokenizer.load(smollm2_source)
    assert time.perf_counter() - start < 1.5  # 0.09 s was measured: 49k tokens, 49k merges


def test_lone_surrogates_are_a_request_error(smollm2: Tokenizer) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        smollm2.encode("a\ud800b")


# --- GGUF metadata ---------------------------------------------------------------------------------------------------


def test_long_texts_are_one_text(smollm2: Tokenizer) -> None:
    """They take another way through the library: its ids are those of the way that short texts take."""
    text = "".join(TEXTS) * 40
    assert len(text) > 10_000 and smollm2.encode(text) == smollm2._backend.encode(text).ids


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_loses_no_byte(smollm2_source: TokenizerSource, name: str) -> None:
    assert smollm2_source.gguf is not None
    tokenizer = Tokenizer.load(TokenizerSource("x.gguf", {**smollm2_source.gguf, "tokenizer.ggml.pre": name}))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_split_expressions_equal_transformers(name: str) -> None:
    table = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_PRE_TOKENIZER_SPLITS
    from tokenizers import Regex

    from llmx.tokens.pre_tokenizers import pre_tokenizer

    oracle = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(table[name]), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    ours = pre_tokenizer(name, "x.gguf")
    for text in [*TEXTS, *random_texts(200), "DON'T We'Ll HTTPServer camelCase ÀÉÎ"]:
        assert ours.pre_tokenize_str(text) == oracle.pre_tokenize_str(text), text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer.ggml.pre": "smollmm"}, "'smollmm', which is not known; nearest: smollm"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model is 'bert'; supported: gpt2"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.merges": 3}, "tokenizer.ggml.merges is missing or no array"),
        ({"tokenizer.ggml.token_type": np.zeros(3)}, "must hold 49152 numbers"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token is 1: a bool"),
    ],
)
def test_broken_metadata_is_refused(smollm2_source: TokenizerSource, changes: dict[str, object], reason: str) -> None:
    assert smollm2_source.gguf is not None
    with pytest.raises(ModelError, match=reason):
        Tokenizer.load(TokenizerSource("x.gguf", {**smollm2_source.gguf, **changes}))


def test_merges_outside_the_vocabulary_are_refused(smollm2_source: TokenizerSource) -> None:
    assert smollm2_source.gguf is not None
    merges = type("Strings", (list,), {"decode": lambda self: list(self)})(["zzzzq qqqqz"])
    with pytest.raises(ModelError, match="merges does not fit the vocabulary"):
        Tokenizer.load(TokenizerSource("x.gguf", {**smollm2_source.gguf, "tokenizer.ggml.merges": merges}))


@pytest.mark.parametrize(("flag", "ids"), [({}, False), ({"tokenizer.ggml.add_bos_token": True}, True)])
def test_bos_follows_the_flag(smollm2_source: TokenizerSource, flag: dict[str, object], ids: bool) -> None:
    assert smollm2_source.gguf is not None
    tokenizer = Tokenizer.load(TokenizerSource("x.gguf", {**smollm2_source.gguf, **flag}))
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.add_bos is ids and tokenizer.encode("hi") == ([1, *plain] if ids else plain)


def test_eos_set_and_senseless_ids(smollm2_source: TokenizerSource) -> None:
    assert smollm2_source.gguf is not None
    changes = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.padding_token_id": -1, "tokenizer.ggml.bos_token_id": 49152}
    tokenizer = Tokenizer.load(TokenizerSource("x.gguf", {**smollm2_source.gguf, **changes}, eos_ids=(7,)))
    assert tokenizer.eos_ids == (2, 0, 7) and tokenizer.bos_id is None and not tokenizer.add_bos


def test_ids_without_a_token_of_their_own_have_no_bytes(sentencepiece: Callable[..., Tokenizer]) -> None:
    """Some files fill the vocabulary up with equal texts: the last one counts, the others still are ids."""
    strings = type("Strings", (list,), {"decode": lambda self: list(self)})
    tokenizer = sentencepiece(tokens=strings(["<unk>", "<s>", "</s>", "a", "a", "▁"]), token_type=np.array([2, 3, 3, 1, 1, 1]), scores=np.zeros(6))
    assert tokenizer.vocab_size == 6 and tokenizer.token_bytes(3) == b"" and tokenizer.token_bytes(4) == b"a"
    assert tokenizer.encode("a<unk></s>", add_special_tokens=False) == [5, 4, 0, 2]


# --- SentencePiece-like ----------------------------------------------------------------------------------------------


def test_sentencepiece_words_bytes_and_spaces(sentencepiece: Callable[..., Tokenizer]) -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("the a")
    assert [tokenizer.token_bytes(token) for token in ids] == [b"<s>", b" the", b" a"]
    assert tokenizer.add_bos and tokenizer.decode(ids) == "the a" and tokenizer.decode(ids[1:], at_start=False) == " the a"
    for text in ("the a", " the", "  a", "ä猫 é😀", "a\n\tb", "a<tool>", "<0x41>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.token_id("<tool>") in tokenizer.encode("a<tool>b")
    assert tokenizer.token_bytes(3 + 0xE4) == b"\xe4"


def test_sentencepiece_merges_follow_the_scores(sentencepiece: Callable[..., Tokenizer]) -> None:
    """Best score first, as SentencePiece merges: "▁t" has a better score than "he", so "▁the" = "▁t" + "he"."""
    tokenizer = sentencepiece()
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("thing", add_special_tokens=False)] == [b" t", b"h", b"ing"]


def test_sentencepiece_without_prefix_space(sentencepiece: Callable[..., Tokenizer]) -> None:
    tokenizer = sentencepiece(add_space_prefix=False, add_bos_token=False)
    assert tokenizer.decode(tokenizer.encode(" a")) == " a" and not tokenizer.strips_leading_space
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("a b")] == [b"a", b" b"]


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30))
def test_sentencepiece_round_trip(text: str) -> None:
    tokenizer = _tiny_sentencepiece()
    if "▁" not in text and not any(name in text for name in ("<s>", "</s>", "<unk>", "<tool>")):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def _tiny_sentencepiece(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006 - made once for all examples
    if not cache:
        words = ["▁", "▁a", "▁b", "ab", *"abcdef"]
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
        strings = type("Strings", (list,), {"decode": lambda self: list(self)})
        table = {"model": "llama", "tokens": strings(tokens), "token_type": np.array([2, 3, 3, *[6] * 256, *[1] * len(words)]),
                 "scores": np.arange(len(tokens), 0, -1.0), "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}  # fmt: skip
        cache.append(Tokenizer.load(TokenizerSource("tiny.gguf", {f"tokenizer.ggml.{key}": value for key, value in table.items()})))
    return cache[0]


# --- directories -----------------------------------------------------------------------------------------------------


def byte_level_backend() -> Backend:
    vocab = {char: index for index, char in enumerate(sorted(BYTE_OF))}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return backend


def test_directory_with_post_processor(write_tokenizer: Callable[..., Path]) -> None:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "added_tokens_decoder": {"258": {"content": "<extra>", "special": False}}}
    tokenizer = Tokenizer.load(TokenizerSource(str(write_tokenizer(backend, config)), eos_ids=(9,)))
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.add_bos, tokenizer.vocab_size) == (256, (257, 9), True, 259)
    assert tokenizer.encode("a")[0] == 256 and tokenizer.encode("a", add_special_tokens=False)[0] != 256
    assert tokenizer.encode("x<extra>", add_special_tokens=False)[-1] == 258 and not tokenizer.is_special(258)
    assert tokenizer.decode(tokenizer.encode("naïve 猫")) == "naïve 猫"


@pytest.mark.parametrize("flag", [True, False])
def test_an_explicit_bos_flag_wins(write_tokenizer: Callable[..., Path], flag: bool) -> None:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    directory = write_tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": flag, "add_eos_token": True})
    tokenizer = Tokenizer.load(TokenizerSource(str(directory)))
    ids = tokenizer.encode("a")
    assert (ids[0] == 256, ids.count(256), ids[-1]) == (flag, int(flag), 257)


def test_directory_of_sentencepiece_kind(write_tokenizer: Callable[..., Path]) -> None:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": byte + 3 for byte in range(256)} | {"▁": 259, "a": 260, "▁a": 261}
    backend = Backend(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>", "</s>"])
    tokenizer = Tokenizer.load(TokenizerSource(str(write_tokenizer(backend, {"bos_token": "<s>", "add_bos_token": True}))))
    for text in ("a a", " a", "猫", "a\n"):
        ids = tokenizer.encode(text)
        assert ids[0] == 1 and tokenizer.decode(ids) == text == backend.decode(ids)


@pytest.mark.parametrize(
    ("content", "files", "reason"),
    [
        (None, {"tokenizer.model": "x"}, "tokenizer.json is missing; it has tokenizer.model"),
        (None, {}, "tokenizer.json is missing; give --tokenizer"),
        (None, {"tokenizer.json": "{"}, "no tokenizer.json that"),
        (None, {"tokenizer.json": "{}"}, "no tokenizer.json that the tokenizers library can read"),
        ("ctc", {}, r"decoder \(CTC\) is not supported"),
        ("bpe", {"tokenizer_config.json": "[]"}, "tokenizer_config.json: holds a JSON list"),
    ],
)
def test_broken_directories_are_refused(write_tokenizer: Callable[..., Path], content: str | None, files: dict[str, str], reason: str) -> None:
    backend = None if content is None else byte_level_backend()
    if content == "ctc":
        backend.decoder = decoders.CTC()
    with pytest.raises(ModelError, match=reason):
        Tokenizer.load(TokenizerSource(str(write_tokenizer(backend, None, files))))

"""A Vocabulary from the metadata of a GGUF file (`tokenizer.ggml.*`)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from llmx.errors import ModelError
from llmx.tokens.pre_tokenizers import IGNORE_MERGES, pre_tokenizer
from llmx.tokens.source import TokenizerSource
from llmx.tokens.vocabulary import Vocabulary

__all__ = ["vocabulary_from_gguf"]

# kinds of vocabulary that are supported: tokenizer.ggml.model
_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"


_NORMAL = 1  # tokenizer.ggml.token_type of most tokens


class _Type(IntEnum):
    """The others."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def vocabulary_from_gguf(source: TokenizerSource) -> Vocabulary:
    """The vocabulary. Raises ModelError naming file and key for a kind or a pre-tokenizer that is not known, or inconsistent arrays."""
    metadata = _Metadata(source.gguf or {}, source.path)
    kind = metadata.get("model", str, "")
    if kind not in (_BYTE_LEVEL, _SENTENCEPIECE):
        raise ModelError(f"tokenizer.ggml.model is {kind!r}; supported: {_BYTE_LEVEL} (byte-level BPE), {_SENTENCEPIECE} (SentencePiece)", path=source.path)
    tokens = metadata.strings("tokens")
    kinds = metadata.numbers("token_type", len(tokens), _NORMAL)
    ids = {name: metadata.token_id(name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    table = dict(zip(tokens, range(len(tokens)), strict=True))
    if kind == _BYTE_LEVEL:
        backend = _byte_level(metadata, table)
    else:
        backend = _sentencepiece(metadata, tokens, table, ids["unknown"], source.cache_dir)
    types = {token: kind for token, kind in enumerate(kinds) if kind != _NORMAL}  # of the few that are no normal ones
    control = _of_type(types, _Type.CONTROL) | _of_type(types, _Type.UNKNOWN)
    control |= {token for token in ids.values() if token is not None}
    plain = _of_type(types, _Type.USER_DEFINED) - control
    backend.add_special_tokens([AddedToken(tokens[token], normalized=False, special=True) for token in sorted(control)])
    backend.add_tokens([AddedToken(tokens[token], normalized=False, special=False) for token in sorted(plain)])
    ends = [ids[name] for name in ("eos", "eot", "eom")]
    spaced = kind == _SENTENCEPIECE and metadata.get("add_space_prefix", bool, True)
    return Vocabulary(
        backend,
        size=len(tokens),
        style="byte_level" if kind == _BYTE_LEVEL else "sentencepiece",
        strip_space=spaced,
        bos_id=ids["bos"],
        eos_ids=tuple(dict.fromkeys([*(end for end in ends if end is not None), *source.eos_ids])),
        special_ids=frozenset(control),
        added_ids=frozenset(control | plain),
        byte_ids=frozenset(_of_type(types, _Type.BYTE)),
        add_bos=metadata.get("add_bos_token", bool, kind == _SENTENCEPIECE or metadata.get("pre", str, "default") in IGNORE_MERGES),
        add_eos=metadata.get("add_eos_token", bool, False),
        names={f"{short}_token": tokens[token] for short, token in _named(ids) if token is not None},
    )


def _of_type(types: Mapping[int, int], kind: _Type) -> set[int]:
    return {token for token, one in types.items() if one == kind}


def _named(ids: Mapping[str, int | None]) -> list[tuple[str, int | None]]:
    return [("bos", ids["bos"]), ("eos", ids["eos"]), ("unk", ids["unknown"]), ("pad", ids["padding"])]


def _byte_level(metadata: _Metadata, table: dict[str, int]) -> Tokenizer:
    pairs = _pairs(metadata)
    name = metadata.get("pre", str, "default")
    backend = _bpe(metadata.path, table, pairs, ignore_merges=name in IGNORE_MERGES)
    backend.pre_tokenizer = pre_tokenizer(name, metadata.path)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pairs(metadata: _Metadata) -> list[tuple[str, ...]]:
    return [tuple(merge.split(" ", 1)) for merge in metadata.strings("merges")]


def _sentencepiece(metadata: _Metadata, tokens: list[str], table: dict[str, int], unknown: int | None, cache_dir: str | None) -> Tokenizer:
    if metadata.has("merges"):
        pairs = _pairs(metadata)
    else:
        from llmx.tokens.merge_cache import cached_merges, merges_from_scores  # reads numpy, which other vocabularies do without

        scores = metadata.numbers("scores", len(tokens), 0)
        merges = cached_merges(cache_dir, tokens, scores, lambda: merges_from_scores(tokens, table, scores))
        pairs = [(tokens[left], tokens[right]) for left, right in merges.tolist()]
    text = None if unknown is None else tokens[unknown]
    backend = _bpe(metadata.path, table, pairs, unk_token=text, fuse_unk=True, byte_fallback=True)
    prepend = [normalizers.Prepend("▁")] if metadata.get("add_space_prefix", bool, True) else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _bpe(path: str, table: dict[str, int], merges: list[Any], **options: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(vocab=table, merges=merges, **options))
    except Exception as error:  # noqa: BLE001 - the library raises a bare Exception, for example for a merge outside the vocabulary
        raise ModelError(f"tokenizer.ggml.merges does not fit the vocabulary: {error}", path=path) from error


class _Metadata:
    """Typed access to `tokenizer.ggml.*`."""

    def __init__(self, table: Mapping[str, Any], path: str) -> None:
        self._table, self.path = table, path

    def has(self, key: str) -> bool:
        return f"tokenizer.ggml.{key}" in self._table

    def get(self, key: str, kind: type, default: Any) -> Any:
        value = self._table.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, kind):
            raise ModelError(f"tokenizer.ggml.{key} is {value!r}: a {kind.__name__} is needed", path=self.path)
        return value

    def strings(self, key: str) -> list[str]:
        value = self._table.get(f"tokenizer.ggml.{key}")
        if value is None or not hasattr(value, "decode") or not len(value):
            raise ModelError(f"tokenizer.ggml.{key} is missing or no array of strings", path=self.path)
        return list(value.decode())

    def numbers(self, key: str, count: int, default: int) -> list[Any]:
        value = self._table.get(f"tokenizer.ggml.{key}")
        if value is None:
            return [default] * count
        if not hasattr(value, "tolist") or len(value) != count:
            raise ModelError(f"tokenizer.ggml.{key} must hold {count} numbers, one per token", path=self.path)
        return list(value.tolist())

    def token_id(self, name: str, count: int) -> int | None:
        """A special id, or None when it is absent or outside the vocabulary (some files say -1, or one past the end)."""
        value = self._table.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count else None

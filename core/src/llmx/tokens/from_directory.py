"""A Vocabulary from tokenizer.json and the small files beside it (tokenizer_config.json, special_tokens_map.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from llmx.errors import ModelError
from llmx.tokens.source import TokenizerSource
from llmx.tokens.vocabulary import Vocabulary
from llmx.weights.json_file import read_json_object

__all__ = ["vocabulary_from_directory"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def vocabulary_from_directory(source: TokenizerSource) -> Vocabulary:
    """The vocabulary. source.path: the directory, or tokenizer.json itself. Raises ModelError naming the file and the reason."""
    path = Path(source.path)
    file = path / "tokenizer.json" if path.is_dir() else path
    folder = file.parent
    if not file.is_file():
        old = [name for name in ("tokenizer.model", "vocab.json", "spiece.model", "tekken.json") if (folder / name).is_file()]
        remedy = f"it has {', '.join(old)}: convert with `AutoTokenizer.from_pretrained(directory).save_pretrained(directory)` of transformers" if old else ""
        raise ModelError(f"tokenizer.json is missing; {remedy or 'give --tokenizer a directory that has one'}", path=str(folder))
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises a bare Exception for every fault of the file
        raise ModelError(f"is no tokenizer.json that the tokenizers library can read: {error}", path=str(file)) from error
    backend.no_truncation()
    backend.no_padding()
    config = read_json_object(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    names = _special_names(folder, config)
    style, strip = _style(backend, str(file))
    added = _added_tokens(backend, config)
    ids = {name: backend.token_to_id(text) for name, text in names.items()}
    special = {token for token, entry in added.items() if entry.special} | {token for token in ids.values() if token is not None}
    eos = ids.get("eos_token")
    return Vocabulary(
        backend,
        size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        style=style,
        strip_space=strip,
        bos_id=ids.get("bos_token"),
        eos_ids=tuple(dict.fromkeys([*([] if eos is None else [eos]), *source.eos_ids])),
        special_ids=frozenset(special),
        added_ids=frozenset(added),
        add_bos=_flag(config, "add_bos_token"),
        add_eos=_flag(config, "add_eos_token"),
        names=names,
    )


def _special_names(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of bos_token, eos_token, ...: from tokenizer_config.json, else from special_tokens_map.json."""
    older = folder / "special_tokens_map.json"
    names: dict[str, str] = {}
    for table in (read_json_object(older) if older.is_file() else {}, config):
        for name in _NAMED:
            value = table.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                names[name] = text
    return names


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None


def _added_tokens(backend: Tokenizer, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Added tokens by id, those included that only tokenizer_config.json names."""
    known = backend.get_added_tokens_decoder()
    declared = config.get("added_tokens_decoder")
    for key, entry in declared.items() if isinstance(declared, dict) else ():
        if isinstance(entry, dict) and str(key).isdecimal() and int(key) not in known and isinstance(entry.get("content"), str):
            options = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
            backend.add_tokens([AddedToken(entry["content"], **options)])
    return dict(backend.get_added_tokens_decoder())


def _style(backend: Tokenizer, path: str) -> tuple[Literal["byte_level", "sentencepiece", "wordpiece"], bool]:
    """(how tokens stand for bytes, whether a leading space is dropped), from the decoder that the file declares."""
    state = backend.decoder.__getstate__() if backend.decoder is not None else b"null"
    steps = list(_steps(json.loads(state)))
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return "byte_level", False
    if "WordPiece" in kinds:
        return "wordpiece", True
    metaspace = next((step for step in steps if step.get("type") == "Metaspace"), None)
    if metaspace is not None:
        return "sentencepiece", metaspace.get("prepend_scheme", "always") != "never" and metaspace.get("add_prefix_space", True) is not False
    if any(step.get("type") == "Replace" and step.get("pattern") == {"String": "▁"} and step.get("content") == " " for step in steps):
        return "sentencepiece", any(step.get("type") == "Strip" and step.get("content") == " " and step.get("start") == 1 for step in steps)
    raise ModelError(
        f"its decoder ({', '.join(sorted(str(kind) for kind in kinds)) or 'none'}) is not supported;"
        " supported: ByteLevel, WordPiece, Metaspace, and SentencePiece's Replace, ByteFallback, Fuse, Strip",
        path=path,
    )


def _steps(decoder: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(decoder, dict):
        if decoder.get("type") == "Sequence":
            for step in decoder.get("decoders") or ():
                yield from _steps(step)
        else:
            yield decoder

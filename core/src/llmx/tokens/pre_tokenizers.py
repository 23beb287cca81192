"""How text is cut before byte-level BPE, by the names that GGUF files use (`tokenizer.ggml.pre`).

A recipe is a list of regular expressions; each cuts the pieces that the ones before left: a match becomes a piece of its own.
Source: the published tokenizer.json of each model; the names and their grouping are llama.cpp's.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from tokenizers import Regex, pre_tokenizers

from llmx.errors import ModelError

__all__ = ["IGNORE_MERGES", "PRE_TOKENIZERS", "pre_tokenizer"]

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASES = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_WORDS = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
_LLAMA3 = _WORDS.replace("%s", r"\p{N}{1,3}")
_QWEN2 = _WORDS.replace("%s", _DIGIT)
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_CASES[0]}*{_CASES[1]}+%e|[^\r\n\p{{L}}\p{{N}}]?{_CASES[0]}+{_CASES[1]}*%e|%n| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
_GPT4O = _CASED.replace("%e", _ENDINGS + "?").replace("%n", r"\p{N}{1,3}")
_TEKKEN = _CASED.replace("%e", "").replace("%n", _DIGIT)

_RECIPES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("default",), (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    (("gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "trillion", "granite-docling", "roberta-bpe", "exaone4"), (_GPT2,)),
    (("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (_DIGIT, _GPT2)),
    (("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe"), (_LLAMA3,)),
    (("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "kormo"), (_QWEN2,)),
    (("gpt-4o", "llama4"), (_GPT4O,)),
    (("tekken",), (_TEKKEN,)),
)

PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {name: recipe for names, recipe in _RECIPES for name in names}
# a piece that is a token as a whole is taken at once, whatever its merges say
IGNORE_MERGES = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"})


def pre_tokenizer(name: str, path: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of that GGUF name. Raises ModelError naming it, the file and the nearest known ones."""
    if name not in PRE_TOKENIZERS:
        near = difflib.get_close_matches(name, PRE_TOKENIZERS, n=3, cutoff=0.3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise ModelError(f"tokenizer.ggml.pre is {name!r}, which is not known{hint}. Give --tokenizer a directory with the model's tokenizer.json", path=path)
    patterns = PRE_TOKENIZERS[name]
    gpt2_last = patterns[-1] == _GPT2  # the library has GPT-2's expression built in, and faster
    steps = [_step(pattern) for pattern in patterns[: len(patterns) - gpt2_last]]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2_last)])


def _step(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == _DIGIT:  # what those models' tokenizer.json says: numbers as Unicode's newest tables know them
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")

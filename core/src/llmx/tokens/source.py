"""TokenizerSource: where a model's tokenizer, special ids and chat template are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.record import record

__all__ = ["TokenizerSource"]


@record
class TokenizerSource:
    """What a Tokenizer and a ChatTemplate are made from: GGUF metadata, or a directory with tokenizer.json.

    path: the file or directory, named in errors. gguf: metadata of a GGUF file (arrays of strings have `decode()`); None: `path`
    is a directory, or tokenizer.json itself. eos_ids: ids that end a text by the model's own configuration, beside the tokenizer's.
    cache_dir: folder for builds that take long; None: none are kept.
    """

    path: str
    gguf: Mapping[str, Any] | None = None
    eos_ids: tuple[int, ...] = ()
    cache_dir: str | None = None

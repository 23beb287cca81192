"""Texts for models that read them whole: one or a pair, with the tokens that mark their ends, cut so that these stay."""

from __future__ import annotations

from typing import Any, Literal

from llmx.errors import RequestError
from llmx.tokens.vocabulary import Vocabulary

__all__ = ["encode_texts"]


def encode_texts(
    vocabulary: Vocabulary, text: str, pair: str | None, most: int | None, side: Literal["left", "right"], each: tuple[int, int] = (0, 0)
) -> tuple[list[int], int]:
    """(token ids, where the second text begins by token type; -1 without types). most: tokens in all; the longer text is cut first.
    each: tokens of either text, 0: no limit.

    Raises RequestError for a text that is not Unicode, and for a limit that leaves no room for a text.
    """
    backend = vocabulary.backend
    try:
        parts = [backend.encode(one, add_special_tokens=False) for one in (text, pair) if one is not None]
    except (UnicodeEncodeError, TypeError) as error:
        raise RequestError(f"the text is not valid Unicode: {error}") from error
    for part, limit in zip(parts, each, strict=False):
        if limit:
            part.truncate(limit, direction=side)
    if most is not None:
        room = most - backend.num_special_tokens_to_add(pair is not None)
        if room < 1:
            why = f"a limit of {most} tokens leaves no room for the text beside the model's special tokens"
            raise RequestError(f"{why}: raise it", field="truncate_prompt_tokens")
        for part, length in zip(parts, _lengths([len(part.ids) for part in parts], room), strict=True):
            part.truncate(length, direction=side)
    whole: Any = backend.post_process(parts[0], parts[1] if len(parts) > 1 else None)
    types: list[int] = whole.type_ids
    return list(whole.ids), types.index(1) if 1 in types else -1


def _lengths(lengths: list[int], room: int) -> list[int]:
    """What each may keep: the longer one gives way first."""
    if sum(lengths) <= room or len(lengths) == 1:
        return [min(lengths[0], room), *lengths[1:]]
    short = min(lengths)
    kept = min(short, room // 2), room - min(short, room // 2)
    return list(kept) if lengths[0] <= lengths[1] else [kept[1], kept[0]]

"""A short form of the token ids of many strings: one digest for each 20 strings, so that a difference can be found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

__all__ = ["TOGETHER", "digests"]

TOGETHER = 20


def digests(ids: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[str]]:
    """Per script, for each 20 strings in order, 12 hexadecimal digits of the SHA-256 of their ids."""
    return {
        script: [
            hashlib.sha256(json.dumps([list(map(int, row)) for row in rows[at : at + TOGETHER]]).encode()).hexdigest()[:12]
            for at in range(0, len(rows), TOGETHER)
        ]
        for script, rows in ids.items()
    }

"""Merges of a large SentencePiece vocabulary, kept on disk: finding them takes seconds for 262,144 tokens.

A file is one build: `merges-v1-<digest of tokens and scores>.bin`, the SHA-256 of the rest, then int32 pairs of ids. A file that
is not whole is built again; a folder that cannot be written costs time only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np

__all__ = ["LARGE", "cached_merges", "merges_from_scores"]

LARGE = 32768  # tokens; smaller vocabularies are built in less time than is worth a file
_VERSION = 1  # of the file's format and of the order of merges
_DIGEST = hashlib.sha256().digest_size


def cached_merges(folder: str | None, tokens: Sequence[str], scores: Sequence[float], build: Callable[[], np.ndarray]) -> np.ndarray:
    """int32 [merges, 2]: what build() gives, from a file of `folder` where it was built before. folder None: no file."""
    if folder is None or len(tokens) < LARGE:
        return build()
    key = hashlib.sha256("\0".join(tokens).encode())
    key.update(np.asarray(scores, dtype="<f8").tobytes())
    path = Path(folder) / f"merges-v{_VERSION}-{key.hexdigest()}.bin"
    merges = _read(path)
    if merges is None:
        merges = build()
        with suppress(OSError):
            _write(path, merges)
    return merges


def merges_from_scores(tokens: Sequence[str], table: Mapping[str, int], scores: Sequence[float]) -> np.ndarray:
    """int32 [merges, 2], in the order SentencePiece would do them: best score first, among equals the pieces with lower ids."""
    find, found = table.get, []
    for token, text in enumerate(tokens):
        for cut in range(1, len(text)):
            left = find(text[:cut])
            if left is not None:
                right = find(text[cut:])
                if right is not None:
                    found.append((token, left, right))
    if not found:
        return np.empty((0, 2), np.int32)
    merges = np.array(found, np.int32)
    return merges[np.lexsort((merges[:, 2], merges[:, 1], merges[:, 0], -np.asarray(scores, np.float64)[merges[:, 0]])), 1:]


def _read(path: Path) -> np.ndarray | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    payload = data[_DIGEST:]
    if len(payload) % 8 or hashlib.sha256(payload).digest() != data[:_DIGEST]:
        return None
    return np.frombuffer(payload, "<i4").reshape(-1, 2)


def _write(path: Path, merges: np.ndarray) -> None:
    """Beside the place first, so that nobody reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    payload = np.ascontiguousarray(merges, dtype="<i4").tobytes()
    with NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(hashlib.sha256(payload).digest() + payload)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise

"""The alphabet of byte-level BPE: every byte has one printable character, so that a vocabulary is plain text."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BYTE_OF", "spell"]


def _byte_of() -> dict[str, int]:
    # GPT-2's encoder.py: bytes that print as themselves stay, the others follow from U+0100 on in ascending order
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if chr(byte) not in table]
    return table | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


BYTE_OF: Mapping[str, int] = _byte_of()


def spell(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for. A token with a character outside the alphabet is text: its UTF-8."""
    try:
        return bytes([BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()

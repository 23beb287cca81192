"""Strings of 20 scripts, the same on every machine: letters and marks assigned in Unicode 14, mixed with spaces, digits and ASCII."""

from __future__ import annotations

import random
from collections.abc import Mapping

__all__ = ["SCRIPTS", "strings_of"]

PER_SCRIPT = 500
# first and last code points of runs that are assigned without a gap
SCRIPTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "latin": ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x1E00, 0x1EFF), (0x300, 0x30C)),
    "greek": ((0x391, 0x3A1), (0x3A3, 0x3CE), (0x1F00, 0x1F15)),
    "cyrillic": ((0x400, 0x45F), (0x490, 0x4FF)),
    "armenian": ((0x531, 0x556), (0x561, 0x587)),
    "hebrew": ((0x5D0, 0x5EA), (0x5B0, 0x5BD)),
    "arabic": ((0x621, 0x63A), (0x641, 0x652), (0x660, 0x669), (0x671, 0x6D3)),
    "syriac": ((0x710, 0x74A),),
    "devanagari": ((0x904, 0x939), (0x93E, 0x94D), (0x966, 0x96F)),
    "bengali": ((0x985, 0x98C), (0x993, 0x9A8), (0x9AA, 0x9B0), (0x9BE, 0x9C4), (0x9E6, 0x9EF)),
    "tamil": ((0xB8E, 0xB90), (0xBAE, 0xBB9), (0xBBE, 0xBC2), (0xBC6, 0xBC8), (0xBE6, 0xBEF)),
    "telugu": ((0xC05, 0xC0C), (0xC12, 0xC28), (0xC2A, 0xC39), (0xC3E, 0xC44)),
    "thai": ((0xE01, 0xE3A), (0xE40, 0xE5B)),
    "tibetan": ((0xF40, 0xF47), (0xF49, 0xF6C), (0xF71, 0xF84)),
    "georgian": ((0x10A0, 0x10C5), (0x10D0, 0x10FA), (0x1C90, 0x1CBA)),
    "ethiopic": ((0x1200, 0x1248), (0x12D8, 0x1310)),
    "khmer": ((0x1780, 0x17B3), (0x17B6, 0x17D3), (0x17E0, 0x17E9)),
    "hangul": ((0xAC00, 0xD7A3), (0x1100, 0x1112), (0x1161, 0x1175)),
    "kana": ((0x3041, 0x3096), (0x30A1, 0x30FA)),
    "han": ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x200FF)),
    "emoji": ((0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F90C, 0x1F9FF), (0x2600, 0x26FF)),
}
_BETWEEN = (" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "\u00a0", "\u3000", "\u200d", "", "")
_ASCII = tuple("the a Hello don't I'LL we've x1 foo_bar C++ 1 42 2024 3.14 1,000,000 ! ?! ... -- ( ) \" €5 § ½ ²".split())


def strings_of(script: str) -> list[str]:
    """PER_SCRIPT strings of up to about 60 characters. They depend on random.Random().random() alone, whose values Python guarantees."""
    draw = random.Random(script).random
    runs, texts = SCRIPTS[script], []

    def pick(count: int) -> int:
        return int(draw() * count)

    for _ in range(PER_SCRIPT):
        parts = []
        for _ in range(1 + pick(7)):
            kind = draw()
            if kind < 0.7:
                run = [runs[pick(len(runs))] for _ in range(1 + pick(8))]
                parts.append("".join(chr(low + pick(high - low + 1)) for low, high in run))
            elif kind < 0.95:
                parts.append(_ASCII[pick(len(_ASCII))])
            parts.append(_BETWEEN[pick(len(_BETWEEN))])
        texts.append("".join(parts))
    return texts

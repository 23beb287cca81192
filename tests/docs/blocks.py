"""Code blocks of the documents: fenced ones with their language, indented ones as shell commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "blocks", "commands", "pages"]

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One code block of a page. language: "bash" for indented ones, "" for a fence without a language."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.strip().splitlines()[0][:50]}"


def pages() -> list[Path]:
    """What a user reads: the README, docs/, and the READMEs of packages."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in order of kind."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    for match in _FENCE.finditer(text):
        yield Block(name, match[1], match[2])
    for match in _INDENTED.finditer(re.sub(r"(?m)^( *[-*\d].*\n)(?: {2,}.*\n)*", "\n", _FENCE.sub("", text))):
        yield Block(name, "bash", "".join(line[4:] for line in match[0].splitlines(keepends=True)))


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, split into words; comments are left out. Raises ValueError for a quote that is not closed."""
    joined = block.text.replace("\\\n", " ")
    found: list[list[str]] = []
    held = ""
    for line in joined.splitlines():
        held += line
        try:
            words = shlex.split(held, comments=True)
        except ValueError:
            held += "\n"
            continue
        held = ""
        if words:
            found.append(words)
    if held.strip():
        raise ValueError(f"{block}: a quote is not closed")
    return found

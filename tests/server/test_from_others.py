"""docs/from-llamacpp.md and docs/from-ollama.md: what stands on the right side of their tables exists here, and what they call ignored is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from processes import llmx
from test_default_deny import all_routes

from llmx.options import OPTIONS
from llmx_server.protocol.api_fields import FIELDS

PAGES = ("from-llamacpp.md", "from-ollama.md")
DOCS = Path(__file__).parents[2] / "docs"
FLAGS = {flag for option in OPTIONS for flag in (option.flag, option.flag.replace("--", "--no-", 1))} | {"--config"}
WORKING = {field.name for field in FIELDS if field.state == "works"}
# spans of an answer, of a body and of the host, which no table of names holds
OTHER = re.compile(r"choices\[0\]|usage\.|finish_reason$|stop_reason$|raw$|models$|max_model_len$|config\.json$|\{|http://")


def rows(page: str) -> Iterator[tuple[str, str, str]]:
    """(section, there, here) of each line of the tables."""
    for section in (DOCS / page).read_text().split("\n## ")[1:]:
        for there, here in re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE):
            if there != "there":
                yield section.partition("\n")[0], there, here


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Help texts of commands, each asked for once."""
    return {}


def check_command(words: list[str], helps: dict[str, str]) -> None:
    command = words[:2] if words[:1] == ["models"] else words[:1]
    name = " ".join(command)
    if name not in helps:
        done = llmx(*command, "--help", environ={"COLUMNS": "200"})
        assert done.returncode == 0, name
        helps[name] = done.stdout
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", helps[name])), words


@pytest.mark.parametrize("page", PAGES)
def test_every_name_on_the_right_exists(page: str, helps: dict[str, str]) -> None:
    routes = {path for _, path in all_routes()}
    seen = 0
    for _, there, here in rows(page):
        names = spans(here)
        assert names or re.match("none|always on|a message|messages|a model|several", here), (there, here)
        for name in names:
            seen += 1
            if name.startswith("llmx "):
                check_command(name.split()[1:], helps)
            elif name.startswith("-"):
                assert name in FLAGS, (there, name)
            elif name.startswith("/"):
                assert name in routes, (there, name)
            elif not OTHER.match(name):
                assert name in WORKING, (there, name)
    assert seen > 60


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_flags_in_the_text_exist(page: str, helps: dict[str, str]) -> None:
    text = (DOCS / page).read_text()
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    for name in spans(prose):
        if name.startswith("llmx "):
            check_command(name.split()[1:], helps)
        elif name.startswith("--"):
            assert name in FLAGS | {"--ctx-size", "--kv-unified-per-slot"}, name
    for link in re.findall(r"\]\(([a-z-]+\.md)\)", text):
        assert (DOCS / link).exists(), link


@pytest.mark.anyio
@pytest.mark.parametrize("page", PAGES)
async def test_fields_without_an_equal_are_named_in_a_warning(page: str, client: httpx.AsyncClient) -> None:
    """And those that have the same name on both sides are not."""
    asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    tried = 0
    for section, there, here in rows(page):
        if section != "Fields of a request" or "options" in there:
            continue
        for name in spans(there):
            if name in WORKING or name.startswith("/"):
                continue
            answer = await client.post("/v1/chat/completions", json={**asked, name: 1})
            tried += 1
            assert answer.status_code == 400 or name in answer.headers["warning"], (name, here)
    assert tried > 8

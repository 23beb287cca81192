"""Every code block in the documents does what it says: it is run where it can be, and checked for its grammar where it cannot."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import ROOT, Block, blocks, commands, pages
from tests.lora.adapters import smollm2_adapter
from tests.server.processes import HANG_S, Server, llmx, serve

BLOCKS = [block for page in pages() for block in blocks(page)]
LOCAL = "http://127.0.0.1:8000"
# Commands that change the machine, need a hub or take minutes: their grammar is checked, and what they do is tested elsewhere.
NOT_RUN = set("apt-get brew cd cp docker export git journalctl make pip pipx python python3 rm source systemctl useradd".split())
NOT_RUN_LLMX = {"key", "pull", "rm", "chat", "bench", "serve", "run", "conformance", "plugin", "run-batch"}  # serve is checked by its options


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    files = str(tmp_path_factory.mktemp("files"))
    adapter = smollm2_adapter(tmp_path_factory.mktemp("adapter"))
    options = ("--max-model-len", "2048", "--num-blocks", "256", "--threads", "1", "--files-dir", files, "--lora-modules", f"rivers={adapter}")
    with serve(*options) as running:
        yield running


def test_every_block_has_a_language_that_is_checked() -> None:
    known = {"bash", "python", "json", "yaml", "toml", "ini", "nginx", "text", "console"}
    assert [str(block) for block in BLOCKS if block.language not in known and block.page not in ("docs/program.md", "docs/hooks.md")] == []
    assert len(BLOCKS) > 20


PYTHON = [block for block in of("python") if block.page != "docs/grpc.md"]  # tests/server/test_grpc_live.py runs that


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, server: Server, tmp_path: Path) -> None:
    if "docs/hooks.md" in block.page or "docs/program.md" in block.page:
        compile(block.text, block.page, "exec")
        return
    text = block.text.replace(LOCAL, server.url)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=HANG_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip(), "an example that prints nothing shows nothing"


SHELL = [block for block in of("bash") if block.page != "docs/api.md" or "curl" not in block.text]  # tests/server/test_api_page.py runs those


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell(block: Block, server: Server) -> None:
    for words in commands(block):
        run_command(words, server)


def run_command(words: list[str], server: Server) -> None:
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]  # variables before a command
    if not words:
        return
    program = words[0].rsplit("/", 1)[-1]
    if program == "curl":
        target = [word.replace(LOCAL, server.url) for word in words]
        if "--unix-socket" in target:
            return  # tests/server/test_unix_socket.py
        done = subprocess.run([*target, "--silent", "--show-error", "--fail"], capture_output=True, text=True, timeout=HANG_S)
        assert done.returncode == 0, (words, done.stderr)
    elif program == "llmx":
        run_llmx(words[1:])
    elif program == "make":
        goals = [word for word in words[1:] if "=" not in word]
        known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(goals) <= set(known), words
    else:
        assert program in NOT_RUN, f"{words}: run it, or say in NOT_RUN why not"


def run_llmx(words: list[str]) -> None:
    """Runs a command; one that needs a hub or a terminal, or does not end, is checked for its options."""
    words = [word for word in words if word != "|"]
    checked = words[0] in NOT_RUN_LLMX or any("/" in word and not Path(word).exists() for word in words[1:])  # a hub's name
    done = llmx(*words, *(["--help"] if checked else []))
    assert done.returncode in (0, 1 if words[0] == "doctor" else 0), (words, done.stderr)
    if checked:
        flags = {word.split("=")[0] for word in words[1:] if word.startswith("--")}
        assert flags <= set(re.findall(r"--[a-z0-9-]+", done.stdout)), (words, "an option that the command does not have")


@pytest.mark.parametrize("block", of("json", "yaml", "toml", "ini"), ids=str)
def test_data(block: Block) -> None:
    match block.language:
        case "json":
            json.loads(block.text)
        case "yaml":
            assert yaml.safe_load(block.text)
        case "toml":
            import tomllib

            assert tomllib.loads(block.text)
        case "ini":
            parser = configparser.ConfigParser(interpolation=None, strict=False)
            parser.optionxform = str  # type: ignore[assignment,method-assign]
            parser.read_string(block.text)
            assert parser.sections()


def test_the_configuration_of_the_service_page_is_taken(tmp_path: Path) -> None:
    """The YAML of docs/service.md, read by llmx itself."""
    (text,) = [block.text for block in of("yaml") if block.page == "docs/service.md"]
    (path := tmp_path / "llmx.yaml").write_text(text)
    done = llmx("config", "show", "--config", str(path))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["max_num_queued_reqs", "256", "file"] in rows

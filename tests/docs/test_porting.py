"""docs/porting.md, followed: its commands, in its order, in an empty folder; pip is replaced by writing the metadata that it would leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.generated import install_generated
from tests.docs.blocks import ROOT, blocks, commands
from tests.server.processes import HANG_S

# what takes long or does not end, and where it is tested
SHORTENED = {"serve": None, "bench": None}  # tests/conformance/test_plugin_new.py, tests/cli/test_bench.py


@pytest.mark.slow
def test_the_commands_of_the_page_work_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    page = [words for block in blocks(ROOT / "docs/porting.md") if block.language == "bash" for words in commands(block)]
    assert [words[:3] for words in page[:2]] == [["llmx", "plugin", "new"], ["pip", "install", "-e"]]
    ran = []
    for words in page:
        if words[0] == "pip":
            install_generated(tmp_path / words[-1], tmp_path / "site", monkeypatch)
        elif words[1] not in SHORTENED:
            few = ["--area", "errors"] if words[1] == "conformance" and "--area" not in words else []
            done = subprocess.run([sys.executable, "-m", "llmx", *words[1:], *few], capture_output=True, text=True, timeout=10 * HANG_S)
            assert done.returncode == 0, (words, done.stdout[-1000:], done.stderr[-1000:])
            ran.append(words[1])
    assert ran.count("conformance") == 3 and ran.count("plugin") == 2 and "platforms" in ran

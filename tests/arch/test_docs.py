"""Documents say what is there. Every check also has a self-test: a planted fault must be found."""

from __future__ import annotations

from pathlib import Path

import pytest

import arch_docs as rules
from arch_tree import ROOT, Tree, plant

TREE = Tree()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
API = ROOT / "tests/arch/public_api.txt"


def test_every_core_module_has_a_line_in_architecture() -> None:
    assert rules.unlisted_modules(TREE, ARCHITECTURE) == []


def test_unlisted_modules_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="x = 1\n", llmx__b="x = 1\n")
    page = "`llmx/__init__.py` package\n`llmx/a.py` one\n`llmx/gone.py` two\n"
    assert rules.unlisted_modules(tree, page) == ["src/llmx/b.py: no line in ARCHITECTURE.md", "ARCHITECTURE.md names llmx/gone.py, which is not there"]


def test_the_walk_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    lines = rules.walk_lines(TREE, ARCHITECTURE)
    with capsys.disabled():
        print(f"\nthe walk: {sum(lines.values())} lines in {len(lines)} files, at most {rules.MAX_WALK}")
    assert any("sched/" in name for name in lines) and any("llmx_server/" in name for name in lines) and any("engine/" in name for name in lines)
    assert sum(lines.values()) < rules.MAX_WALK


def test_the_walk_counts_lines(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="x = 1\n" * 7)
    page = "## The walk, counted\n| `llmx/a.py` | x |\n| `llmx/__init__.py` | y |\n\n## Next\n| `llmx/b.py` | z |\n"
    assert rules.walk_lines(tree, page) == {"llmx/a.py": 7, "llmx/__init__.py": 1}


def test_links() -> None:
    assert rules.broken_links(ROOT) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One, two\n[x](b.md) [y](#one-two) [z](#three) [w](https://example.com/q)\n")
    assert rules.broken_links(tmp_path) == ["a.md: link to b.md: no such file", "a.md: link to #three: no such heading"]


def test_named_files_exist() -> None:
    assert rules.missing_paths(ROOT) == []


def test_missing_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "a.md").write_text("`docs/`, `docs/b.md` and `other/thing`\n")
    assert rules.missing_paths(tmp_path) == ["a.md: docs/b.md does not exist"]


def test_python_blocks_parse() -> None:
    assert rules.bad_code_blocks(ROOT) == []


def test_bad_python_blocks_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("```python\nx = 1\n```\n\n```python\nx = (\n```\n")
    assert len(rules.bad_code_blocks(tmp_path)) == 1


def test_make_commands_exist() -> None:
    assert rules.unknown_make_targets(ROOT) == []


def test_unknown_make_commands_are_found(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("serve: x\n\ttrue\n")
    (tmp_path / "a.md").write_text("Run `make serve`, then:\n```\n$ make tea\n```\nWe make bread.\n")
    assert rules.unknown_make_targets(tmp_path) == ["a.md: make tea: no such target"]


def test_hooks_in_documents_exist() -> None:
    assert rules.unknown_hooks(TREE, ROOT) == []


def test_unknown_hooks_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__hooks__specs="class Specs:\n    def llmx_models(self): ...\n")
    (tmp_path / "a.md").write_text("`llmx_models` and `llmx_tea`\n")
    assert rules.unknown_hooks(tree, tmp_path) == ["a.md: llmx_tea is no hook"]


def test_no_foreign_paths_or_hosts() -> None:
    assert rules.foreign_words(ROOT) == []


def test_foreign_paths_and_hosts_are_found(tmp_path: Path) -> None:
    words = ["see /" + "home/me/x", "from https://" + "pypi" + ".org/simple", "pip install --" + "index-url y"]
    (tmp_path / "a.md").write_text("\n".join(words) + "\na/home/b and docs/work/x are fine\n")
    assert [fault.split(":")[1] for fault in rules.foreign_words(tmp_path)] == ["1", "2", "3"]


def test_one_version_everywhere() -> None:
    found = rules.versions(ROOT)
    assert len(found) > 3
    assert len(set(found.values())) == 1, found


def test_other_versions_are_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "0.1.0"\ndependencies = ["llmx-cli==0.2.0", "numpy==1.0"]\n')
    assert rules.versions(tmp_path) == {"pyproject.toml": "0.1.0", "pyproject.toml: llmx-cli": "0.2.0"}


def test_public_api_is_the_checked_in_one() -> None:
    """Changed on purpose? python tests/arch/arch_docs.py > tests/arch/public_api.txt, and a line in CHANGELOG.md."""
    assert rules.public_api(TREE) == API.read_text(encoding="utf-8")


def test_public_api_changes_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__errors='__all__ = ["B", "A"]\n', llmx__kv__pool='__all__ = ["C"]\n')
    assert rules.public_api(tree) == "llmx.errors: A B\n"


def test_config_stays_small(capsys: pytest.CaptureFixture[str]) -> None:
    counts = rules.config_fields(TREE)
    with capsys.disabled():
        print(f"\nconfig: {sum(counts.values())} fields in {len(counts)} classes")
    assert counts["EngineConfig"] == 9
    assert sum(counts.values()) <= 100  # a new field names its component and what it replaces; raising this needs an ADR

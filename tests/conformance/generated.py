"""Packages that `llmx plugin new` wrote, put on sys.path with metadata as pip would leave it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.hooks.vendor import install
from tests.server.processes import llmx

__all__ = ["generate", "install_generated"]


def generate(folder: Path, name: str, kind: str) -> Path:
    """The folder of a package written by the command."""
    done = llmx("plugin", "new", name, "--kind", kind, "--into", str(folder))
    assert done.returncode == 0, done.stderr
    (root,) = [path for path in folder.iterdir() if path.name.endswith(name)]
    return root


def install_generated(root: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package from its own pyproject.toml into `site`, without a network."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    groups = [f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items()) for group, entries in project["entry-points"].items()]
    source = root / "src"
    files = {str(path.relative_to(source)): path.read_text() for path in sorted(source.rglob("*.py"))}
    install(site, monkeypatch, project["name"], files, "\n".join(groups), project["version"])
    monkeypatch.setenv("PYTHONPATH", str(site))  # for processes of their own

"""Installed llmx packages are found by their folders; the slow way gives the same."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import pytest

from llmx.engine.installed import installed


def test_equals_what_every_distribution_says_of_itself() -> None:
    slow: dict[str, str] = {}
    for dist in distributions():
        if (dist.name or "").lower().startswith("llmx-"):
            slow.setdefault(dist.name.lower(), dist.version)
    assert installed() == dict(sorted(slow.items())) and "llmx-core" in slow


def test_a_package_elsewhere_on_the_path_counts_and_one_without_metadata_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("llmx_some_thing-1.2.dist-info", "Metadata-Version: 2.1\nName: llmx-some-thing\nVersion: 1.2\n"), ("llmx_empty-1.0.dist-info", None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "METADATA").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "nowhere")
    found = installed()
    assert found["llmx-some-thing"] == "1.2" and "llmx-empty" not in found

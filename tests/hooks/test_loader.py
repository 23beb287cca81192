"""Finding, refusing and selecting plugins: every failure is named, none is silent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmx.config import PlatformConfig
from llmx.errors import PlatformError, PluginError
from llmx.hooks.loader import Found, PluginLoader, ProbeResult
from llmx.hooks.types import Detection
from llmx.platform.select import select_platform
from llmx.resolve import resolve
from tests.hooks.vendor import PROBE, install, install_acme


def _probe(name: str, *, present: bool = True, score: int = 50, error: str = "") -> ProbeResult:
    return ProbeResult(name, f"llmx-platform-{name}", None if error else Detection(present, score=score, why=f"{name} why"), error)


def test_metadata_is_read_without_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "llmx-boom", {"boom_llmx.py": "raise SystemExit('imported')"}, "[llmx.platforms]\nboom = boom_llmx\n")
    loader = PluginLoader.discover(PlatformConfig())
    assert "boom" in {item.name for item in loader.group("llmx.platforms")}
    assert "boom_llmx" not in sys.modules


def test_two_distributions_with_one_name_are_refused() -> None:
    twice = [Found("llmx.platforms", "acme", "a:P", "dist-a", "1"), Found("llmx.platforms", "acme", "b:P", "dist-b", "1")]
    with pytest.raises(PluginError, match="dist-a and dist-b"):
        PluginLoader(twice)
    assert PluginLoader(twice, deny=("platforms:acme",)).found == ()


def test_allow_and_deny_work_per_group() -> None:
    found = [Found("llmx.platforms", "acme", "a:P", "d", "1"), Found("llmx.plugins", "acme", "a:Q", "d", "1")]
    assert [item.group for item in PluginLoader(found, deny=("plugins:acme",)).found] == ["llmx.platforms"]
    assert [item.group for item in PluginLoader(found, allow=("plugins:acme",)).found] == ["llmx.plugins"]
    assert PluginLoader(found, deny=("acme",)).found == ()


def test_a_broken_chosen_platform_stops_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "[llmx.probes]\nacme = acme_llmx.probe:detect\n[llmx.platforms]\nacme = acme_llmx.plugin:P\n"
    install(tmp_path, monkeypatch, "llmx-platform-acme", {"acme_llmx/__init__.py": "", "acme_llmx/plugin.py": "import no_such_driver_module"}, entry)
    with pytest.raises(PluginError, match="(?s)plugin 'acme'.*no_such_driver_module"):
        PluginLoader.discover(PlatformConfig()).activate("acme")


def test_a_broken_plugin_that_nobody_chose_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "llmx-boom", {"boom_llmx.py": "1 / 0"}, "[llmx.plugins]\nboom = boom_llmx\n")
    loader = PluginLoader.discover(PlatformConfig())
    loader.activate("null")
    assert len(loader.warnings) == 1 and "ZeroDivisionError" in loader.warnings[0] and "llmx-boom" in loader.warnings[0]


def test_a_platform_without_info_and_a_misspelt_hook_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "[llmx.platforms]\nacme = acme_llmx.plugin\n"
    install(tmp_path, monkeypatch, "llmx-platform-acme", {"acme_llmx/__init__.py": "", "acme_llmx/plugin.py": "x = 1"}, entry)
    with pytest.raises(PluginError, match="llmx_platform_info"):
        PluginLoader.discover(PlatformConfig()).activate("acme")


def test_a_misspelt_hook_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misspelt = "\n    @hookimpl\n    def llmx_gem_kernels(self, config):\n        return []\n"
    install_acme(tmp_path, monkeypatch, extra=misspelt)
    with pytest.raises(PluginError, match="llmx_gem_kernels"):
        PluginLoader.discover(PlatformConfig()).activate("acme")


def test_the_only_present_platform_is_chosen_and_absent_ones_are_listed() -> None:
    chosen = select_platform([_probe("a"), _probe("b", present=False), _probe("null", score=99)], None)
    assert chosen.name == "a" and "only platform present" in chosen.why
    assert chosen.others == ("b: installed, not used: b why",)


def test_score_decides_and_a_tie_lists_each_reason() -> None:
    assert select_platform([_probe("a"), _probe("b", score=60)], None).name == "b"
    with pytest.raises(PlatformError, match="a: a why; b: b why.*--platform"):
        select_platform([_probe("a"), _probe("b")], None)


def test_a_probe_that_raises_stops_unless_another_platform_is_named() -> None:
    probes = [_probe("a"), _probe("b", error="Traceback: driver exploded")]
    with pytest.raises(PlatformError, match="driver exploded"):
        select_platform(probes, None)
    assert select_platform(probes, "a").name == "a"
    with pytest.raises(PlatformError, match="driver exploded"):
        select_platform(probes, "b")


def test_nothing_present_or_not_installed_names_the_command() -> None:
    with pytest.raises(PlatformError, match="pip install llmx-platform-cpu"):
        select_platform([_probe("null")], None)
    with pytest.raises(PlatformError, match=r"is not installed \(installed: a\): name one of these"):
        select_platform([_probe("a")], "zpu")
    with pytest.raises(PlatformError, match="not present: a why"):
        select_platform([_probe("a", present=False)], "a")


def test_probe_results_keep_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"p_llmx.py": "def detect(environ):\n    raise OSError('node missing')\n", "q_llmx.py": PROBE.format(present=True, score=1, why="q")}
    install(tmp_path, monkeypatch, "llmx-p", files, "[llmx.probes]\npp = p_llmx:detect\nqq = q_llmx:detect\n")
    results = {result.name: result for result in PluginLoader.discover(resolve({}, environ={})[0].platform).probe_all({})}
    assert "node missing" in results["pp"].error and results["pp"].detection is None
    assert results["qq"].detection == Detection(True, count=1, score=1, why="q")

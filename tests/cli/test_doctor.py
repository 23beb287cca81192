"""`llmx doctor`: each fault that it knows is planted, and found with its place and the command that mends it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from llmx.resolve import resolve
from llmx_cli.doctor import machine, packages, plugins
from llmx_cli.doctor.finding import Finding
from tests.cli.conftest import Ran
from tests.hooks.vendor import PROBE, install, install_acme

GIB = 1 << 30


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    found = [one for one in findings if one.level == "error"]
    assert all(one.what and one.where and one.fix for one in found), found
    return found


def _doctor(llmx: Callable[..., Ran], *options: str) -> tuple[Ran, dict[str, dict[str, str]]]:
    ran = llmx("doctor", "--json", "--port", "0", *options)
    errors = {one["check"]: one for one in ran.json()["findings"] if one["level"] == "error"}
    assert ran.code == int(bool(errors)) and ran.json()["ok"] is not bool(errors)
    assert all(one["what"] and one["where"] and one["fix"] for one in errors.values()), errors
    return ran, errors


def test_a_sound_installation(llmx: Callable[..., Ran]) -> None:
    ran, errors = _doctor(llmx, "--platform", "null")
    assert errors == {} and {"processor", "versions", "requirements", "plugins", "platform", "memory", "port"} <= {
        one["check"] for one in ran.json()["findings"]
    }
    text = llmx("doctor", "--platform", "null", "--port", "0")
    assert text.code == 0 and text.out.endswith("nothing is wrong\n") and "fix" not in text.out


def test_version_skew_and_unmet_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmx: Callable[..., Ran]) -> None:
    install(tmp_path, monkeypatch, "llmx-server", {}, "", version="0.0.9")
    _, errors = _doctor(llmx, "--platform", "null")
    assert "llmx-server 0.0.9" in errors["versions"]["what"] and errors["versions"]["fix"].startswith("pip install -U llmx-cli")
    assert "needs llmx-server==0.1.0, found 0.0.9" in errors["requirements"]["what"]


def test_a_foreign_llmx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmx: Callable[..., Ran]) -> None:
    install(tmp_path, monkeypatch, "llmx", {}, "", version="3.1")
    _, errors = _doctor(llmx, "--platform", "null")
    assert "llmx 3.1" in errors["foreign llmx"]["what"] and "pip uninstall -y llmx" in errors["foreign llmx"]["fix"]
    assert str(tmp_path) in errors["foreign llmx"]["where"]


def test_a_plugin_for_another_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmx: Callable[..., Ran]) -> None:
    install_acme(tmp_path, monkeypatch, api=(9, 0), score=1)
    _, errors = _doctor(llmx, "--platform", "null")
    assert set(errors) == {"plugin API"} and "9.0" in errors["plugin API"]["what"] and "llmx-platform-acme" in errors["plugin API"]["fix"]


@pytest.mark.parametrize(("body", "says"), [("import no_such_driver", "no_such_driver"), ("x = 1 / 0", "ZeroDivisionError")])
def test_a_broken_plugin(body: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmx: Callable[..., Ran]) -> None:
    install(tmp_path, monkeypatch, "llmx-boom", {"boom_llmx.py": body}, "[llmx.plugins]\nboom = boom_llmx\n")
    _, errors = _doctor(llmx, "--platform", "null")
    assert says in errors["plugins"]["what"] and errors["plugins"]["fix"] == "pip uninstall -y llmx-boom" and "llmx.plugins" in errors["plugins"]["where"]


def test_two_platforms_tied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmx: Callable[..., Ran]) -> None:
    files = {f"{name}_llmx.py": PROBE.format(present=True, score=99, why=f"{name} is here") for name in ("aa", "bb")}
    install(tmp_path, monkeypatch, "llmx-two", files, "[llmx.probes]\naa = aa_llmx:detect\nbb = bb_llmx:detect\n")
    _, errors = _doctor(llmx)
    assert "aa is here" in errors["platform"]["what"] and "bb is here" in errors["platform"]["what"]
    assert errors["platform"]["fix"] == "llmx serve --platform aa"


def test_a_probe_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llmx: Callable[..., Ran]) -> None:
    install(tmp_path, monkeypatch, "llmx-p", {"p_llmx.py": "def detect(environ):\n    raise OSError('node missing')\n"}, "[llmx.probes]\npp = p_llmx:detect\n")
    _, errors = _doctor(llmx)
    assert "'pp'" in errors["platform"]["what"] and errors["platform"]["fix"] == "pip install --force-reinstall llmx-p"


def test_no_compiler_matters_only_without_a_platform(tmp_path: Path, llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(plugins.check_compiler("cpu", str(tmp_path))) == []
    (finding,) = _errors(plugins.check_compiler(None, str(tmp_path)))
    assert "apt-get install g++" in finding.fix
    monkeypatch.setenv("PATH", str(tmp_path))
    _, errors = _doctor(llmx, "--deny-plugin", "cpu")
    assert set(errors) == {"platform", "compiler"} and errors["platform"]["fix"] == "pip install llmx-platform-cpu"


def _cpuinfo(root: Path, flags: str) -> Path:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    return root


def test_a_processor_that_is_too_old(tmp_path: Path) -> None:
    old = "fpu sse sse2 ssse3 cx16"
    (finding,) = _errors(machine.check_cpu(_cpuinfo(tmp_path, old)))
    assert "lacks sse4_1, sse4_2, popcnt" in finding.what
    slow = f"{old} sse4_1 sse4_2 popcnt"
    (finding,) = machine.check_cpu(_cpuinfo(tmp_path, slow))
    assert finding.level == "warning" and "avx2" in finding.what
    (finding,) = machine.check_cpu(_cpuinfo(tmp_path, f"{slow} avx2 fma f16c"))
    assert finding.level == "ok"


def _memory(root: Path, limit: int) -> Path:
    group = root / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemAvailable: {64 * GIB // 1024} kB\n")
    for name, text in (("memory.max", limit), ("memory.current", 0), ("memory.stat", "inactive_file 0")):
        (group / name).write_text(f"{text}\n")
    return root


def test_a_cgroup_that_is_too_small(tmp_path: Path) -> None:
    config, _ = resolve({"platform": "cpu"}, environ={})
    (finding,) = _errors(machine.check_memory(config, [], _memory(tmp_path / "small", 250_000_000)))
    assert "250 MB free" in finding.what and finding.where == "cgroup limit of 250 MB" and finding.fix == "llmx serve --max-model-len 2048"
    (finding,) = _errors(machine.check_memory(config, [], _memory(tmp_path / "tiny", 90_000_000)))
    assert "docker run -m" in finding.fix
    (finding,) = machine.check_memory(config, [], _memory(tmp_path / "large", 4 * GIB))
    assert finding.level == "ok"


def test_a_cache_that_cannot_be_written(tmp_path: Path, llmx: Callable[..., Ran]) -> None:
    (tmp_path / "file").write_text("")
    _, errors = _doctor(llmx, "--platform", "null", "--cache-dir", str(tmp_path / "file/cache"), "--download-dir", str(tmp_path / "new/hub"))
    assert set(errors) == {"cache"} and "--cache-dir" in errors["cache"]["fix"]
    assert not (tmp_path / "new").exists()


def test_a_busy_port(llmx: Callable[..., Ran]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _, errors = _doctor(llmx, "--platform", "null", "--port", str(port))
    assert f"port {port}" in errors["port"]["what"] and "llmx serve --port " in errors["port"]["fix"] and "ss -ltnp" in errors["port"]["fix"]


def test_a_wrong_build_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"torch/version.py": "__version__ = '2.13.0+alpha'\ndebug = False\ngit_version = 'abc'\nalpha: str | None = '13.0'\nbeta = None\n"}
    install(tmp_path, monkeypatch, "torch", files, "", version="2.13.0+alpha")
    assert _errors(packages.check_torch("llmx-core", "cpu")) == [] and _errors(packages.check_torch("llmx-core", "alpha:1")) == []
    (finding,) = _errors(packages.check_torch("llmx-core", "beta:0"))
    assert "built for alpha, the device is beta:0" in finding.what and str(tmp_path) in finding.where
    assert list(packages.check_torch(None)) == []


def test_torch_older_than_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "torch", {}, "", version="1.0")
    (finding,) = [one for one in _errors(packages.check_requirements()) if "llmx-core" in one.what]  # others need torch too
    assert "llmx-core" in finding.what and "needs torch>=2.11, found 1.0" in finding.what and finding.fix == "pip install 'torch>=2.11'"


def test_a_misspelt_variable_and_a_missing_model(llmx: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    _, errors = _doctor(llmx, "--platform", "null", "/no/such.gguf")
    assert "/no/such.gguf" in errors["model"]["what"]
    monkeypatch.setenv("LLMX_PRT", "1")
    _, errors = _doctor(llmx)
    assert "LLMX_PORT" in errors["options"]["what"]

"""Every package installs alone: its wheel and core's, by plain pip, into a fresh environment; there its entry points load and tests of its own pass.

Only what the metadata name is there, and what the tests need (pytest and a few clients). constraints.txt pins the build of torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ("core", "cli", "plugins/server", "plugins/llguidance")  # core brings the others
# folder -> (what its tests need beside it, what pytest gets)
OWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "core": (("hypothesis",), ("tests/kv", "tests/program/test_builder.py", "-k", "not torch")),
    "cli": ((), ("tests/cli/test_key.py",)),
    "plugins/server": (("httpx", "openai"), ("tests/server/test_limits.py",)),
    "plugins/llguidance": (("hypothesis", "jsonschema"), ("tests/structured/test_many_rows.py",)),
    "plugins/xgrammar": (("jsonschema",), ("tests/structured/test_xgrammar.py",)),
    "plugins/otel": (("httpx",), ("tests/server/test_traces.py", "-k", "not real_server")),  # that one needs a model
    "plugins/ipex": (("torch",), ("tests/platforms/test_ipex.py", "-m", "not slow")),
    "plugins/triton": ((), ("tests/triton/test_kernels.py", "-k", "norm")),
    "platforms/cpu": ((), ("tests/cpu/test_rowwise.py", "tests/cpu/test_slots.py")),
    **{f"platforms/{name}": ((), ("tests/platforms/test_accelerators.py", "-k", f"probe and {name}")) for name in ("cuda", "rocm", "xpu")},
    "platforms/tpu": ((), ("tests/tpu/test_platform.py",)),
}
_LOAD = """
import importlib.metadata, json, sys
names = [e.value for e in importlib.metadata.distribution(sys.argv[1]).entry_points if e.group.startswith("llmx.")]
from llmx.hooks.loader import load_target
for name in names: load_target(name)
__import__(sys.argv[2])
print(json.dumps([names, sorted(d.metadata["Name"] for d in importlib.metadata.distributions() if d.metadata["Name"].startswith("llmx-"))]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(*command: object, **options: str) -> str:
    """What it printed. Its last lines are in the failure."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1500, env={**environment, **options})
    assert done.returncode == 0, f"{' '.join(words)[:300]}\n{(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels of core and what it brings."""
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", folder, *[f"./{name}" for name in CORE])
    return folder


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """The interpreter of an empty environment, which is removed afterwards: with torch it takes a gigabyte."""
    folder = tmp_path / "env"
    venv.create(folder, with_pip=True)
    yield folder / "bin/python"
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_every_package_is_here() -> None:
    found = [path for folder in ("core", "cli", "plugins/*", "platforms/*") for path in ROOT.glob(f"{folder}/pyproject.toml")]
    assert sorted(OWN) == sorted(path.parent.relative_to(ROOT).as_posix() for path in found)


@pytest.mark.parametrize("package", OWN)
def test_it_installs_alone_and_passes_its_tests(package: str, wheels: Path, fresh: Path) -> None:
    own, tests = OWN[package]
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]["name"]
    if package not in CORE:
        run(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", wheels, f"./{package}")
    install = [fresh, "-m", "pip", "install", "-qq", "--find-links", wheels, "-c", ROOT / "tests/packaging/constraints.txt"]
    run(*install, "llmx-core", project)
    run(fresh, "-m", "pip", "check")
    [module] = [folder.name for folder in (ROOT / package / "src").iterdir() if (folder / "__init__.py").is_file()]
    entries, installed = json.loads(run(fresh, "-c", _LOAD, project, module))
    assert set(installed) == {"llmx-core", "llmx-cli", "llmx-server", "llmx-llguidance", project}
    assert entries or package in ("cli", "plugins/server")
    run(*install, "pytest", "pytest-timeout", *own)
    done = run(fresh, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    assert " passed" in done and "no tests ran" not in done

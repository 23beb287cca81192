"""The suite must notice a fault: each is planted in a copy of the tree, and the tests named beside it must fail there.

The same tests pass on the unchanged copy. Slow: one fault needs the native library built again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("core/src", "cli/src", "plugins/server/src", "platforms/cpu/src")
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Fault:
    """A replacement of one piece of text in one file, and the tests that must notice."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    native: bool = False


FAULTS = {
    "block accounting: a released block stays held": Fault(
        "core/src/llmx/kv/block_pool.py", "self._refs[block] = refs\n", "self._refs[block] = refs or 1\n", ("tests/kv", "tests/sched/test_scheduler.py")
    ),
    "block accounting: no copy before a shared block is written": Fault(
        "core/src/llmx/kv/manager.py", ".refs(table[first_written]) > 1", ".refs(table[first_written]) > 99", ("tests/sched/test_scheduler.py",)
    ),
    "detokenizer: the end of a cut character is dropped": Fault(
        "core/src/llmx/tokens/detokenizer.py", 'self._decoder.decode(b"", final=True)', '""', ("tests/tokens",)
    ),
    "stop strings: the search does not fall back to a shorter match": Fault(
        "core/src/llmx/tokens/stop.py", "                matched = border[matched - 1]\n", "                matched = 0\n", ("tests/tokens/test_stop.py",)
    ),
    "kernel: the minimum of a Q4_1 block is left out": Fault(
        "platforms/cpu/csrc/linear_int_impl.h",
        "static constexpr bool kMinimum = kForm.minimum;",
        "static constexpr bool kMinimum = kForm.minimum && T != WeightType::q4_1;",
        ("tests/cpu/test_linear.py",),
        native=True,
    ),
    "kernel: the window of attention is one key too wide": Fault(
        "platforms/cpu/csrc/attention_plan.h", "? position - window + 1 : 0", "? position - window : 0", ("tests/cpu/test_attention.py",), native=True
    ),
}


def _copy(folder: Path) -> Path:
    tree = folder / "tree"
    skipped = shutil.ignore_patterns(".git", ".venv*", ".build", "dist", "build", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis")
    shutil.copytree(ROOT, tree, ignore=skipped)
    library = _installed_library()
    if library is not None:
        shutil.copy(library, tree / "platforms/cpu/src/llmx_cpu" / library.name)
    return tree


def _installed_library() -> Path | None:
    import llmx_cpu

    return next(Path(llmx_cpu.__file__).parent.glob("*.so"), None)


def _tools() -> tuple[str, str]:
    own = ROOT / ".build/tools/bin"
    path = f"{own}{os.pathsep}{os.environ['PATH']}"
    cmake, ninja = shutil.which("cmake", path=path), shutil.which("ninja", path=path)
    if cmake is None or ninja is None:
        pytest.skip("cmake and ninja are needed to build the faulty library")
    return cmake, ninja


def _build(tree: Path) -> None:
    cmake, ninja = _tools()
    build = tree.parent / "native"
    library = _installed_library()
    assert library is not None
    options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run([cmake, "-S", tree / "platforms/cpu", "-B", build, *options], check=True, capture_output=True)
    subprocess.run([cmake, "--build", build], check=True, capture_output=True)
    shutil.copy(next(build.rglob(library.name)), tree / "platforms/cpu/src/llmx_cpu" / library.name)


def _passes(tree: Path, tests: tuple[str, ...]) -> bool:
    paths = os.pathsep.join(str(tree / source) for source in SOURCES)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode == 0


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.timeout(900)
def test_fault_is_noticed(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    tree = _copy(tmp_path)
    path = tree / fault.path
    text = path.read_text()
    assert text.count(fault.old) == 1, f"{fault.path} no longer holds the text that the fault replaces"
    path.write_text(text.replace(fault.old, fault.new))
    if fault.native:
        _build(tree)
    assert not _passes(tree, fault.tests), f"nobody noticed: {name}"


@pytest.mark.timeout(900)
def test_the_unchanged_copy_passes(tmp_path: Path) -> None:
    tests = tuple(sorted({test for fault in FAULTS.values() if not fault.native for test in fault.tests}))
    assert _passes(_copy(tmp_path), tests)

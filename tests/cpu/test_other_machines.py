"""The kernels on aarch64 (NEON and portable) and ppc64le: cross-compiled, and run by an emulator over what this machine recorded.

tests/cpu's own tests are recorded at the portable level, where they compare with numpy; the replay compares each level with that. The
last test is a whole model: 16 greedy tokens. Python runs on this machine only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmx.config import ModelConfig
from llmx.errors import LlmxError
from llmx.models.load import load_model

ROOT = Path(__file__).resolve().parents[2]
MACHINES = {"aarch64": ("aarch64-linux-gnu-g++", "qemu-aarch64"), "ppc64le": ("powerpc64le-linux-gnu-g++", "qemu-ppc64le")}
LEVELS = [("aarch64", "max", 0), ("aarch64", "max", 1), ("ppc64le", "", 0)]  # machine, emulated processor, level of csrc/isa.h
SUITES = {  # what of each file is recorded: every function, few of its repeats
    "linear": "portable-1 and not independent or (independent and portable-1 and 33-64)",
    "rowwise": "",
    "attention": "head_groups or head_dims or different_widths or windows or options",
    "sampler": "greedy or temperature or top or logprob",
}
TOKENS = "504 3575 282 4649 314 7042 30 2 198 2 1 9690 198 2 198 1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


def replay_program(machine: str, folder: Path) -> Path:
    """The replay program for a machine, built once; skips when a tool is missing."""
    for tool in (*MACHINES[machine], "cmake"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: install g++-aarch64-linux-gnu, g++-powerpc64le-linux-gnu, qemu-user and cmake")
    build, system = folder / machine, [f"-DCMAKE_SYSTEM_PROCESSOR={machine}", f"-DCMAKE_CXX_COMPILER={MACHINES[machine][0]}"]
    if not (build / "llmx_replay").exists():
        subprocess.run(["cmake", "-S", ROOT / "platforms/cpu", "-B", build, "-DCMAKE_SYSTEM_NAME=Linux", *system], check=True, timeout=300)
        subprocess.run(["cmake", "--build", build, "--target", "llmx_replay"], check=True, timeout=1500)
    return build / "llmx_replay"


def replay(machine: str, cpu: str, level: int, recorded: Path, folder: Path) -> str:
    command = [MACHINES[machine][1], *(["-cpu", cpu] if cpu else []), replay_program(machine, folder), recorded, str(level)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def record(folder: Path, name: str, *arguments: str) -> Path:
    """A recording, made once by a process of its own."""
    path = folder / f"{name}.rec"
    if not path.exists():
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "RECORD_TO": str(path)}
        done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.mark.parametrize(("machine", "cpu", "level"), LEVELS)
@pytest.mark.parametrize("suite", SUITES)
def test_kernels_give_what_this_machine_gives(machine: str, cpu: str, level: int, suite: str, folder: Path) -> None:
    replay_program(machine, folder)
    chosen = ["-k", SUITES[suite]] if SUITES[suite] else []
    recorded = record(folder, suite, "pytest", "-q", "-p", "tests.cpu.record_plugin", *chosen, f"tests/cpu/test_{suite}.py")
    out = replay(machine, cpu, level, recorded, folder)
    assert f"level {level} " in out and " failed 0 " in out and " compared 0 " not in out


@pytest.mark.parametrize(("machine", "cpu", "level"), LEVELS)
def test_sixteen_greedy_tokens(machine: str, cpu: str, level: int, folder: Path) -> None:
    replay_program(machine, folder)
    try:
        load_model(ModelConfig())
    except LlmxError as error:
        pytest.skip(f"the embedded model is not installed: {error}")
    out = replay(machine, cpu, level, record(folder, "answer", "tests.cpu.record_answer", str(folder / "answer.rec")), folder)
    assert " ".join(out.split()[:16]) == TOKENS


def test_a_processor_without_dot_products_runs_the_portable_level(folder: Path) -> None:
    program = replay_program("aarch64", folder)
    empty = folder / "empty.rec"
    empty.write_bytes(b"")
    for cpu, best in (("cortex-a72", 0), ("neoverse-n1", 1)):
        assert f"level {best} " in replay("aarch64", cpu, -1, empty, folder), (cpu, program)

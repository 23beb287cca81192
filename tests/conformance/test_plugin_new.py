"""What `llmx plugin new` writes installs, is chosen, serves, and passes its own test as written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmx import LLM, SamplingParams
from llmx.engine.explain import explain
from llmx.engine.platforms import list_platforms
from llmx.resolve import resolve
from llmx.testing.conformance import AREAS, Suite
from tests.conformance.generated import generate, install_generated
from tests.server.processes import HANG_S, llmx

pytest.importorskip("torch").set_num_threads(1)


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = generate(tmp_path, "acme", "platform")
    (tmp_path / "site").mkdir()
    install_generated(root, tmp_path / "site", monkeypatch)
    return root


def own_test_passes(root: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(root / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * HANG_S)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:]


def test_a_platform_passes_conformance_as_written(platform: Path) -> None:
    code = [line for path in (*platform.rglob("*.py"), platform / "pyproject.toml") for line in path.read_text().splitlines()]
    assert len(code) <= 150
    report = Suite("acme", areas=[area for area in AREAS if area != "schedule"]).run()  # the schedule: the next test
    assert report.ok, report.of("failed")
    assert report.counts()["refused"] == 0 and report.facts["device"] == "acme1"


@pytest.mark.slow
def test_its_own_test_passes(platform: Path) -> None:
    own_test_passes(platform)


def test_it_is_chosen_and_serves_the_embedded_model(platform: Path) -> None:
    with LLM(platform="acme", kv_cache_memory_bytes="64M", max_model_len=256) as llm:
        assert (llm.info.platform, llm.info.device) == ("acme", "acme1")
        (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0.0, max_tokens=2))
        assert output.outputs[0].text.strip().startswith("Paris")
    config, _ = resolve({"platform": "acme"})
    assert {row.provider for row in explain(config).rows} == {"acme.gated", "torch.reference"}
    (row,) = [row for row in list_platforms(config) if row.name == "acme"]
    assert row.chosen and row.why == "torch's CPU device stands in for acme" and row.diagnostics[0].value == "cpu"


def test_it_runs_emulated_when_its_device_is_absent(platform: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = tmp_path / "site" / "llmx_acme" / "probe.py"
    probe.write_text(probe.read_text().split("def detect")[0] + "def detect(environ):\n    return Detection(False, why='no /dev/acme0')\n")
    sys.modules.pop("llmx_acme.probe", None)
    (absent,) = Suite("acme", areas=["package"]).run().of("failed")
    assert "not present here: no /dev/acme0; --emulate" in absent.why
    report = Suite("acme", emulate=True, areas=["package", "errors"]).run()
    assert report.ok and report.facts["emulated"], report.of("failed")


@pytest.mark.parametrize(("kind", "name"), [("kernels", "fast"), ("plugin", "zoo")])
def test_other_kinds_pass_their_own_test(kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = generate(tmp_path, name, kind)
    (tmp_path / "site").mkdir()
    install_generated(root, tmp_path / "site", monkeypatch)
    own_test_passes(root)


@pytest.mark.parametrize(("name", "words"), [("Acme-1", "lower-case"), ("cpu", "llmx-platform-cpu has already"), ("class", "lower-case")])
def test_names_that_cannot_be_are_refused(name: str, words: str, tmp_path: Path) -> None:
    done = llmx("plugin", "new", name, "--into", str(tmp_path))
    assert done.returncode == 2 and words in done.stderr and not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path) -> None:
    generate(tmp_path, "acme", "platform")
    done = llmx("plugin", "new", "acme", "--into", str(tmp_path))
    assert done.returncode == 2 and "is there already" in done.stderr

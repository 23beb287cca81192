"""The platform as a user meets it: chosen by name alone, saying what it is, refused with the remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

from llmx.hooks import Detection  # noqa: E402
from llmx_tpu import probe  # noqa: E402
from tests.server.processes import llmx  # noqa: E402

ON_CPU = ("--platform", "tpu", "--tpu-backend", "cpu")


def test_it_is_never_chosen_by_itself_where_there_is_no_tpu() -> None:
    rows = {row["name"]: row for row in json.loads(llmx("platforms", "--json").stdout)}
    assert not rows["tpu"]["present"] and not rows["tpu"]["chosen"] and rows["cpu"]["chosen"]
    assert "--tpu-backend cpu" in rows["tpu"]["why"] and "not verified on hardware" in rows["tpu"]["why"] and "\n" not in rows["tpu"]["why"]


def test_without_a_tpu_the_error_names_the_option() -> None:
    done = llmx("explain", "--platform", "tpu")
    assert done.returncode == 2 and "--tpu-backend cpu" in done.stderr


def test_explain_shows_every_candidate_with_its_reason() -> None:
    done = llmx("explain", "smollm2-135m-instruct", *ON_CPU)
    assert done.returncode == 0, done.stderr
    for words in ("not verified on hardware", "linear 960x576 q4_1", "llmx_tpu.kernels.attention:attention", "priority", "10: jax.xla (30) comes first"):
        assert words in done.stdout, words
    forced = llmx("explain", "smollm2-135m-instruct", *ON_CPU, "--kernel", "attention=jax.pallas")
    assert "llmx_tpu.kernels.pallas_attention:attention" in forced.stdout


def test_chips_are_found_on_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (vendor, kind) in enumerate((("0x1ae0", "0x120000"), ("0x1ae0", "0x020000"), ("0x8086", "0x120000"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    monkeypatch.setattr(probe, "glob", lambda pattern: [str(path) for path in sorted(tmp_path.glob("*/vendor"))] if "pci" in pattern else [])
    monkeypatch.setattr(probe, "find_spec", lambda name: None)
    without: Detection = probe.detect({})
    assert not without.present and without.count == 1 and "pip install 'llmx-platform-tpu[tpu]'" in without.why
    monkeypatch.setattr(probe, "find_spec", lambda name: object())
    found: Detection = probe.detect({})
    assert found.present and found.score > 10 and "not verified on hardware" in found.why


def test_the_server_process_does_not_import_jax() -> None:
    """Options and hooks of the platform, as the API process reads them."""
    script = (
        "import sys; from llmx.resolve import resolve; import llmx_tpu.plugin, llmx_tpu.probe, llmx_server.app\n"
        "config, _ = resolve({'platform': 'tpu', 'tpu_backend': 'cpu', 'tpu_devices': 2})\n"
        "assert config.plugins['tpu'] == {'backend': 'cpu', 'devices': 2}; llmx_tpu.plugin.llmx_diagnostics()\n"
        "print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr

"""llmx-ipex: Intel Extension for PyTorch as a provider, against a stand-in with the published parameters, which a slow test compares with the wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
plugin = pytest.importorskip("llmx_ipex.plugin")

from llmx.testing import Driver, logits_of, tiny_llama  # noqa: E402
from llmx.testing.conformance.outcome import Refused  # noqa: E402
from tests.platforms import libraries  # noqa: E402
from tests.platforms.cpu_providers import Asked  # noqa: E402

LIBRARY = "intel_extension_for_pytorch"
ORDERED = ("norm=ipex,torch.reference", "act_mul=ipex,torch.reference")
RIGHT = {LIBRARY: "2.8.0", "torch": "2.8.0+cpu"}


def _installed(patch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    libraries.install(patch, LIBRARY)
    patch.setattr(plugin, "version", lambda name: versions[name])
    patch.delitem(sys.modules, "llmx_ipex.kernels", raising=False)


def _logits(*kernels: str, activation: str = "silu") -> np.ndarray:
    subject = Asked(*kernels, hooks=plugin)
    driver = Driver(subject.executor(tiny_llama(max_position_embeddings=256, hidden_act=activation)))
    driver.join({0: list(range(3, 40))})
    found: np.ndarray = logits_of(driver.executor, driver.seq, {0: list(range(3, 40))}, {0: 0})[0]
    subject.close()
    return found


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_a_model_runs_through_it_when_it_is_ordered(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, RIGHT)
    wanted = _logits(activation=activation)
    assert libraries.CALLS == []  # by itself nothing is taken
    found = _logits(*ORDERED, activation=activation)
    assert libraries.CALLS.count("norm") % 5 == 0 and libraries.CALLS.count("act_mul") % 2 == 0 and set(libraries.CALLS) == {"norm", "act_mul"}
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_what_is_not_taken_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=f"the package {LIBRARY} is not installed"):
        Asked("norm=ipex", hooks=plugin).executor(tiny_llama())
    for versions, reason in (
        (RIGHT | {"torch": "2.13.0+cpu"}, "torch is 2.13.0+cpu: 2.8 is needed, with torch 2.8"),
        (RIGHT | {LIBRARY: "2.7.1"}, f"{LIBRARY} is 2.7.1: 2.8 is needed, with torch 2.8"),
    ):
        _installed(monkeypatch, versions)
        with pytest.raises(Refused, match=re.escape(reason)):  # and the extension, which would end the process, is not imported
            Asked("norm=ipex", hooks=plugin).executor(tiny_llama())
        assert "llmx_ipex.kernels" not in sys.modules
    _installed(monkeypatch, RIGHT)
    with pytest.raises(Refused, match="not implemented: relu"):
        Asked("act_mul=ipex", hooks=plugin).executor(tiny_llama(hidden_act="relu"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_stand_in_has_the_published_parameters(tmp_path: Path) -> None:
    """Names, order and defaults, from the wheel of 2.8.0."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--python-version", "3.11", "--only-binary", ":all:", "--dest", str(tmp_path)]
    if subprocess.run([*command, "intel-extension-for-pytorch==2.8.0"], timeout=500).returncode:
        pytest.skip("intel-extension-for-pytorch 2.8.0 cannot be downloaded")
    [wheel] = tmp_path.glob("*.whl")
    published = ast.parse(zipfile.ZipFile(wheel).read(f"{LIBRARY}/llm/functional/fusions.py"))
    own = next(node for node in ast.parse(Path(libraries.__file__).read_text()).body if isinstance(node, ast.ClassDef) and node.name == "FUSIONS")

    def parameters(tree: ast.AST) -> dict[str, tuple[list[str], list[str]]]:
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        return {one.name: ([arg.arg for arg in one.args.args], [ast.dump(value) for value in one.args.defaults]) for one in functions}

    theirs, ours = parameters(published), parameters(own)
    assert ours == {name: theirs[name] for name in ours} and set(ours) == {"rms_norm", "silu_mul", "gelu_mul"}

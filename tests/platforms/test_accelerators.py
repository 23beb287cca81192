"""The platforms cuda, rocm and xpu, emulated: their probes on made-up machines, what they declare, and a model that they serve."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from llmx import LLM, SamplingParams  # noqa: E402
from llmx.errors import PlatformError  # noqa: E402
from llmx.executor import Control  # noqa: E402
from llmx.hooks import probing  # noqa: E402
from llmx.platform.accelerator import AcceleratorPlatform  # noqa: E402
from llmx.resolve import resolve  # noqa: E402
from llmx.testing.conformance import Suite  # noqa: E402
from llmx.testing.conformance.subject import Subject  # noqa: E402
from llmx.testing.tiny_models import tiny_llama  # noqa: E402

NAMES = ("cuda", "rocm", "xpu")
BUILDS = {"cuda": "cuda", "rocm": "hip", "xpu": "xpu"}


def write(root: Path, *files: str) -> None:
    """Files by path, with a text after a colon."""
    for name in files:
        path, _, text = name.partition(":")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


MACHINES = {
    "cuda": ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"),
    "rocm": ("dev/kfd", *(f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id:{value}" for node, value in ((0, 0), (1, 4711), (2, 4712)))),
    "xpu": (
        *(f"dev/dri/renderD{node}" for node in (128, 129, 130)),
        *(f"sys/class/drm/renderD{node}/device/vendor:{vendor}" for node, vendor in ((128, "0x8086"), (129, "0x1002"), (130, "0x8086"))),
    ),
}
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_counts_devices_and_says_what_is_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detect = import_module(f"llmx_{name}.probe").detect
    assert not detect({}, tmp_path).present and "no device" in detect({}, tmp_path).why
    write(tmp_path, *MACHINES[name])
    without = detect({}, tmp_path)
    assert not without.present and without.why.startswith("2 devices") and f"is not the build for {name}" in without.why  # torch for the CPU
    monkeypatch.setattr(probing, "torch_build", lambda field: ("2.13.0", "13.0" if field == BUILDS[name] else None))
    found = detect({}, tmp_path)
    assert found.present and found.count == 2 and found.score > 10 and "not verified on hardware" in found.why
    assert detect({VISIBLE[name]: "1"}, tmp_path).count == 1
    for hidden in ("", "-1"):
        assert "hides all devices" in detect({VISIBLE[name]: hidden}, tmp_path).why
    monkeypatch.setattr(probing, "torch_build", lambda field: (None, None))
    assert "torch is not installed" in detect({}, tmp_path).why


def test_a_linux_in_windows_has_one_device_file(tmp_path: Path) -> None:
    from llmx_cuda.probe import detect

    write(tmp_path, "dev/dxg", "usr/lib/wsl/lib/libcuda.so.1")
    assert detect({}, tmp_path).why.startswith("1 device (dxg)")


def test_torchs_version_file_is_read_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probing.torch_build("cuda") == (torch.__version__, torch.version.cuda)
    text = "__version__ = '2.13.0+x'\ncuda: Optional[str] = '13.0'\nhip = None\nxpu: Optional[str] = \"2026\"\n"
    write(tmp_path, "torch/__init__.py:", f"torch/version.py:{text}")
    monkeypatch.setattr(probing, "find_spec", lambda name: type("Spec", (), {"origin": str(tmp_path / "torch/__init__.py")}))
    assert [probing.torch_build(field) for field in ("cuda", "hip", "xpu")] == [("2.13.0+x", "13.0"), ("2.13.0+x", None), ("2.13.0+x", "2026")]


@pytest.mark.parametrize("name", NAMES)
def test_emulation_is_asked_for_by_a_variable_and_never_chosen_before_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    detect = import_module(f"llmx_{name}.probe").detect
    found = detect({f"LLMX_{name.upper()}_EMULATE": "1"})
    assert found.present and found.score == 1 and "emulated" in found.why
    monkeypatch.setenv(f"LLMX_{name.upper()}_EMULATE", "1")
    config, _ = resolve({"platform": name})
    platform: AcceleratorPlatform = import_module(f"llmx_{name}.plugin").PLATFORM
    assert platform.llmx_device_runtime(config) == "cpu"
    assert platform.llmx_device_caps(config).arch.startswith(f"{name} emulated on torch")
    assert any("not verified on hardware" in item.value for item in platform.llmx_diagnostics())


def test_devices_and_settings_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    platform: AcceleratorPlatform = import_module("llmx_rocm.plugin").PLATFORM
    config, _ = resolve({"platform": "rocm", "device": "xpu:0"}, environ={})
    with pytest.raises(PlatformError, match=r"--device 'xpu:0'.*cuda:0, :1"):
        platform.llmx_device_runtime(config)
    config, _ = resolve({"platform": "rocm", "device": "cpu"}, environ={"LLMX_ROCM_GRAPHS": "full"})
    with pytest.raises(PlatformError, match="LLMX_ROCM_GRAPHS is 'full': it takes auto, piecewise, off"):
        platform.llmx_device_caps(config)
    config, _ = resolve({"platform": "rocm", "device": "cpu", "kv_cache_dtype": "int8"}, environ={})
    assert [issue.level for issue in platform.llmx_config_check(config, platform.llmx_device_caps(config))] == ["error", "warn"]
    config, _ = resolve({"platform": "rocm", "device": "cpu", "kv_cache_dtype": "fp8"}, environ={})
    assert [issue.level for issue in platform.llmx_config_check(config, platform.llmx_device_caps(config))] == ["warn"]


@pytest.mark.parametrize("name", ["cuda", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rocm", "xpu"))])
def test_the_embedded_model_answers_with_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of the reference platform, from steps that replay graphs."""
    greedy = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    options = {"dtype": "float32", "kv_cache_memory_bytes": "256M", "max_model_len": 256, "max_num_seqs": 2, "threads": 1}
    with LLM(platform="torch", **options) as llm:
        wanted = llm.generate(["The capital of France is"], greedy)[0].outputs[0].token_ids
    monkeypatch.setenv(f"LLMX_{name.upper()}_EMULATE", "1")
    with LLM(platform=name, **options) as llm:
        before = llm._engine.executor.control(Control("stats")).value
        assert before["graphs"] == 2 * 31  # two sizes; 30 layers, whose attention is between graphs
        assert llm.generate(["The capital of France is"], greedy)[0].outputs[0].token_ids == wanted
        after = llm._engine.executor.control(Control("stats")).value
        assert after["graphs"] == before["graphs"] and after["replays"] >= before["replays"] + 4 * 31
        llm.sleep()
        llm.wake_up()
        assert llm.generate(["The capital of France is"], greedy)[0].outputs[0].token_ids == wanted


def test_graphs_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMX_XPU_GRAPHS", "off")
    subject = Subject("xpu", emulate=True)
    assert not subject.caps.has("graph.capture")
    assert "graphs" not in subject.executor(tiny_llama()).control(Control("stats")).value


@pytest.mark.parametrize("variables", [{}, {"LLMX_CUDA_COMPILE": "1"}], ids=["graphs", "compiled"])
def test_eager_captures_and_compiles_nothing(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Core asks for neither; the memory hook is asked all the same."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("llmx.executor.torch.graphs.RecordedGraphs.capture", lambda *_: pytest.fail("captured"))
    monkeypatch.setattr("llmx.executor.torch.compiling.TorchCompiler.compile", lambda *_: pytest.fail("compiled"))
    subject = Subject("cuda", emulate=True)
    config, _ = subject.configured(enforce_eager=True)
    executor = subject.executor(tiny_llama(), config=config)
    assert "graphs" not in executor.control(Control("stats")).value and executor.control(Control("sleep", {"level": 1})).ok
    subject.close()
    with pytest.raises(pytest.fail.Exception, match="captured|compiled"):
        subject.executor(tiny_llama(), config=subject.configured()[0])
    subject.close()


AREAS = [*((name, area) for name in NAMES for area in ("package", "hooks")), *(("cuda", area) for area in ("graph capture", "memory and sleep"))]


@pytest.mark.parametrize(("name", "area"), AREAS)
def test_conformance(name: str, area: str) -> None:
    report = Suite(name, emulate=True, areas=[area]).run()
    assert report.ok, "\n".join(f"{result.name}: {result.why}" for result in report.of("failed"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_conformance_whole(name: str) -> None:
    report = Suite(name, emulate=True).run()
    assert report.ok and report.counts()["passed"] >= 170, "\n".join(f"{result.name}: {result.why}" for result in report.of("failed"))

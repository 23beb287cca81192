"""docs/vendors.md: for each group of patches that vendors make elsewhere, a fake vendor does the same here through a hook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")

from llmx import LLM, SamplingParams  # noqa: E402
from llmx.errors import ConfigError  # noqa: E402
from llmx.hooks.specs import HookSpecs  # noqa: E402
from llmx.testing import Driver, bundle_of, tiny_llama  # noqa: E402
from llmx.testing.conformance.subject import Subject  # noqa: E402
from tests.hooks.vendor import ENTRY_POINTS, PROBE, install, install_acme  # noqa: E402
from tests.hooks.vendor import KERNELS as ACME_KERNELS  # noqa: E402
from tests.hooks.vendor import PLATFORM as ACME  # noqa: E402
from tests.program.paper.oracle import make_config  # noqa: E402
from tests.program.test_meaning import DECODERS  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "vendors.md"
PROMPT = np.random.default_rng(3).integers(3, 512, 21).tolist()

OMEGA = '''
"""A vendor with a torch device and kernels of its own for what others patch."""
from llmx.hooks import ConfigIssue, ConfigPatch, DeviceCaps, ImplDef, PlatformInfo, hookimpl

KINDS = {"attention": ("qkv_prep", "kv_write", "attention"), "op": ("act_mul", "recurrent", "moe_route", "moe_experts")}


def impl(kind, requires=()):
    return ImplDef((kind,), "omega.fused", "torch/1", f"omega_llmx.kernels:{kind}", priority=80, requires=frozenset(requires))


@hookimpl
def llmx_platform_info():
    return PlatformInfo("omega", "omega", (1, 1), "llmx-platform-omega")


@hookimpl
def llmx_device_caps(config):
    lanes = dict(config.platform.options).get("LLMX_OMEGA_LANES", "")
    return DeviceCaps("omega1", frozenset({"f32"}), frozenset({"vendor.omega.cube"} if lanes != "0" else ()), 1, 1 << 30)


@hookimpl
def llmx_device_runtime(config):
    return config.platform.device or "cpu"


@hookimpl
def llmx_attention_backends(config, caps):
    return [impl(kind) for kind in KINDS["attention"]]


@hookimpl
def llmx_op_kernels(config, caps):
    return [impl(kind, ["vendor.omega.cube"]) for kind in KINDS["op"]]


@hookimpl
def llmx_gemm_kernels(config, caps):
    return [ImplDef(("linear",), "omega.matrix", "torch/1", "omega_llmx.kernels:linear", priority=80, supports="omega_llmx.kernels:linear_ok")]


@hookimpl
def llmx_config_defaults(config, caps):
    return [ConfigPatch("scheduler.max_num_seqs", 4, "four lanes")]


@hookimpl
def llmx_config_check(config, caps):
    return [ConfigIssue("error", "cache.kv_dtype", "omega has no int8 pages: leave --kv-cache-dtype out")] if config.page_type == "i8" else []


@hookimpl
def llmx_env_vars():
    from llmx.hooks import EnvVar
    return [EnvVar("LLMX_OMEGA_LANES", "4", "0: without the cube")]
'''
OMEGA_KERNELS = '''
from llmx.executor.torch.kernels import attention as a, basic, moe, recurrent as r

CALLS = {}


class Counted:
    """The reference kernel under another name; counts."""

    def __init__(self, kind, kernel):
        self.kind, self.kernel = kind, kernel

    def pack(self, weights, spec, uses):
        return self.kernel.pack(weights, spec, uses)

    def workspace(self, spec, limits):
        return 0

    def bind(self, spec, packed, states):
        call = self.kernel.bind(spec, packed, states)

        def counted(*args):
            CALLS[self.kind] = CALLS.get(self.kind, 0) + 1
            return call(*args)

        return counted


qkv_prep, kv_write, attention = Counted("qkv_prep", a.qkv_prep), Counted("kv_write", a.kv_write), Counted("attention", a.attention)
act_mul, linear = Counted("act_mul", basic.act_mul), Counted("linear", basic.linear)
recurrent, moe_route, moe_experts = Counted("recurrent", r.recurrent), Counted("moe_route", moe.moe_route), Counted("moe_experts", moe.moe_experts)


def linear_ok(spec):
    return None if spec.quants == ("dense f32",) or "f32" in str(spec.quants) else f"{', '.join(spec.quants)}: the cube multiplies f32 alone"
'''


def _install_omega(folder: Path, monkeypatch: pytest.MonkeyPatch, plugin: str = OMEGA) -> None:
    files = {
        "omega_llmx/__init__.py": "",
        "omega_llmx/probe.py": PROBE.format(present=True, score=1, why="1 omega"),
        "omega_llmx/plugin.py": plugin,
        "omega_llmx/kernels.py": OMEGA_KERNELS,
    }
    entry = "[llmx.probes]\nomega = omega_llmx.probe:detect\n[llmx.platforms]\nomega = omega_llmx.plugin\n"
    install(folder, monkeypatch, "llmx-platform-omega", files, entry)


@pytest.fixture
def omega(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    _install_omega(tmp_path, monkeypatch)
    subject = Subject("omega")
    yield subject
    subject.close()


def _calls() -> dict[str, int]:
    import omega_llmx.kernels as kernels  # type: ignore[import-not-found]

    return dict(kernels.CALLS)


def _tokens(driver: Driver) -> list[int]:
    driver.join({0: PROMPT})
    return [int(driver.step({0: rows}).tokens[0, 0]) for rows in (PROMPT, [-1], [-1])]


def _providers(choices: list[Any], kind: str) -> set[str]:
    return {choice.resolution.provider for choice in choices if choice.resolution.kinds == (kind,)}


def _falcon() -> Any:
    from llmx.weights.quant import quant_key

    build, config_class, _, fields = DECODERS["falcon-h1"]
    model = build(make_config(config_class, **fields).to_dict(), lambda name: quant_key("f32"))  # type: ignore[call-arg]
    return bundle_of(model, max_model_len=64)


def test_group_a_ops_are_called_through_a_resolved_handle(omega: Subject) -> None:
    wanted = _tokens(Subject("torch").driver())
    assert _tokens(omega.driver()) == wanted
    calls = _calls()
    assert calls["act_mul"] == 6  # two layers, three steps: no copy of the function was left behind
    assert calls["linear"] > calls["act_mul"]


def test_group_b_fused_projections_need_no_change_of_a_model_file(omega: Subject) -> None:
    """split + q/k norm + rope of qwen3, and the core of a recurrent mixer, by the vendor's kernels."""
    bundle = tiny_llama(model_type="qwen3", head_dim=32)
    assert _providers(omega.choices(bundle), "qkv_prep") == {"omega.fused"}
    _tokens(omega.driver(bundle))
    assert _calls()["qkv_prep"] == 6
    assert _providers(omega.choices(_falcon()), "recurrent") == {"omega.fused"}


def test_group_d_the_executor_owns_the_geometry_of_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 32 tokens with 512 bytes each: core asks, and sizes tables and memory by the answer."""
    text = ACME.format(api="(1, 1)").replace("16, 128", "32, 512")
    files = {
        "acme_llmx/__init__.py": "", "acme_llmx/probe.py": PROBE.format(present=True, score=90, why="1 cube"),
        "acme_llmx/plugin.py": text, "acme_llmx/kernels.py": ACME_KERNELS,
    }  # fmt: skip
    install(tmp_path, monkeypatch, "llmx-platform-acme", files, ENTRY_POINTS)
    with LLM(platform="acme", num_blocks=300) as llm:
        assert llm.info.kv_tokens == 299 * 32 and llm.info.kv_bytes == 300 * 512
        (output,) = llm.generate("a b c d", SamplingParams(temperature=0.0, max_tokens=70, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 70  # over the edge of two blocks


GRAPHS = """

class Graphs:
    limits = GraphLimits(alignment=4, max_graphs=12)

    def __init__(self):
        self.captured, self.replayed, self.inner = 0, 0, graphs_for("cpu")

    def capture(self, run):
        self.captured, replay = self.captured + 1, self.inner.capture(run)

        def counted():
            self.replayed += 1
            replay()

        return counted

    def close(self):
        pass


GRAPHS = Graphs()


@hookimpl
def llmx_graph_backend(config, caps):
    return GRAPHS
"""


def test_group_c_graphs_are_recorded_by_the_vendors_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are multiples of four and as many as twelve graphs allow; a step then replays, and calls no kernel of a recorded run."""
    head = "from llmx.executor.torch.graphs import graphs_for\nfrom llmx.hooks import GraphLimits\n"
    tagged = OMEGA.replace("priority=80, req", 'tags=frozenset({"graph_safe"} if kind == "act_mul" else ()), priority=80, req')
    tagged = tagged.replace("priority=80, supp", 'tags=frozenset({"graph_safe"}), priority=80, supp')
    _install_omega(tmp_path, monkeypatch, head + tagged + GRAPHS)
    wanted = _tokens(Subject("torch").driver())
    subject = Subject("omega")
    driver = subject.driver()
    from omega_llmx.plugin import GRAPHS as graphs  # type: ignore[import-not-found]

    assert sorted(driver.executor._buckets._buckets) == [8, 16, 32, 64] and graphs.captured == 12  # three runs around two layers' attention
    before = _calls()["act_mul"]
    assert _tokens(driver) == wanted
    assert _calls()["act_mul"] == before and graphs.replayed == 3 * 3
    subject.close()


WATCH = """
    seen = []

    @hookimpl
    def llmx_step_observers(self, config):
        return [self.seen.append]
"""


def test_group_e_a_platform_watches_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch, extra=WATCH)
    with LLM(platform="acme", num_blocks=600) as llm:
        llm.generate([[1, 2, 3]] * 4, SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
        steps = llm._engine.stats().steps
    from acme_llmx.plugin import AcmePlatform  # type: ignore[import-not-found]

    assert [one.number for one in AcmePlatform.seen] == list(range(1, steps + 1)) and max(one.requests for one in AcmePlatform.seen) == 3  # its three lanes


def test_group_g_capabilities_decide_not_identity(omega: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same platform without its cube: the kernel is left out, with the reason, and nothing else changes."""
    wanted = _tokens(omega.driver())
    monkeypatch.setenv("LLMX_OMEGA_LANES", "0")
    poor = Subject("omega")
    choice = next(choice.resolution for choice in poor.choices(tiny_llama()) if choice.resolution.kinds == ("act_mul",))
    assert choice.provider == "torch.reference"
    assert ("omega.fused", "capabilities", "needs vendor.omega.cube; the device (omega1) lacks it") in choice.rejected
    assert _tokens(poor.driver()) == wanted
    poor.close()


def test_group_h_the_device_is_named_once(omega: Subject) -> None:
    """Everything lies on the device that one hook names: weights, pages and values."""
    executor = omega.executor(tiny_llama())
    from llmx.executor import Control

    assert executor.control(Control("stats")).value["device"] == "cpu"
    assert {tensor.device.type for state in executor._ready()[1].states.values() for tensor in state.tensors} == {"cpu"}


def test_group_i_one_resolver_for_every_kind_of_attention(omega: Subject) -> None:
    """Attention with pages and recurrent states of one model; each choice lists what was not taken, and why."""
    choices = omega.choices(_falcon())
    for kind in ("attention", "kv_write", "recurrent"):
        assert _providers(choices, kind) == {"omega.fused"}
    rejected = {entry for choice in choices if choice.resolution.kinds == ("recurrent",) for entry in choice.resolution.rejected}
    assert {(provider, stage) for provider, stage, _ in rejected} == {("torch.reference", "priority")}


def test_group_j_gates_are_data_with_reasons(omega: Subject) -> None:
    """A default that the user may override, a setting that is refused, and a format that one kernel does not take."""
    from llmx.resolve import resolve

    config, _ = resolve({"platform": "omega"})
    changed, changes, _ = omega.platform.configure(config, omega.caps, [])
    assert changed.scheduler.max_num_seqs == 4 and changes[0].why == "four lanes"
    assert omega.config.scheduler.max_num_seqs != 4  # the suite set it
    with pytest.raises(ConfigError, match="omega has no int8 pages"):
        omega.configured(kv_cache_dtype="int8")
    linears = [choice.resolution for choice in omega.choices(tiny_llama("q4_1")) if choice.resolution.kinds == ("linear",)]
    assert any(provider == "omega.matrix" and "multiplies f32 alone" in why for choice in linears for provider, _, why in choice.rejected)


def test_the_page_has_every_group_and_names_what_exists() -> None:
    text = PAGE.read_text()
    rows = {match[1]: match[0] for match in re.finditer(r"^\| ([A-N]) \|.*$", text, re.MULTILINE)}
    assert list(rows) == list("ABCDEFGHIJKLMN")
    hooks = {name for name in vars(HookSpecs) if name.startswith("llmx_")}
    tests = "".join(file.read_text() for file in sorted(Path(__file__).parent.glob("test_vendor*.py")))
    for group, row in rows.items():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        named, state, test = set(re.findall(r"`(llmx_\w+)`", cells[3])), cells[4], re.findall(r"`(test_\w+)`", cells[5])
        assert state in ("there", "in part", "not yet", "not needed"), row
        assert named <= hooks, f"group {group}: {named - hooks} do not exist"
        assert not named or state in ("there", "in part"), row
        assert all(f"def {name}(" in tests for name in test) and bool(test) == (state in ("there", "in part")), f"group {group}: {test}"

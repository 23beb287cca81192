"""What a vendor gives core's torch executor beside a device: a compiler, an allocator. A fake one shows in what an engine's run does."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch").set_num_threads(1)

from llmx import LLM, SamplingParams  # noqa: E402
from llmx.errors import RequestError  # noqa: E402
from llmx.executor import Control  # noqa: E402
from llmx.testing.conformance.subject import Subject  # noqa: E402
from tests.hooks.test_vendor_groups import OMEGA, OMEGA_KERNELS, _install_omega, _tokens  # noqa: E402
from tests.hooks.vendor import PROBE, install  # noqa: E402

COMPILER = """


class Compiler:
    def __init__(self):
        self.examples, self.calls, self.finished = [], 0, 0

    def compile(self, run, example):
        self.examples.append(tuple(tuple(tensor.shape) for tensor in example))

        def compiled(*given):
            self.calls += 1
            return run(*given)

        return compiled

    def finish(self):
        self.finished += 1
        return {"compiled_now": len(self.examples)}


COMPILER = Compiler()


@hookimpl
def llmx_compiler(config, caps):
    return COMPILER
"""


ALLOCATOR = """


class Allocator:
    def __init__(self):
        self.held, self.calls = {}, []

    def hold(self, tag, tensors):
        self.held[tag] = list(tensors)

    def release(self, tag, *, keep):
        self.calls.append(("release", tag, keep))
        return 100 * len(self.held[tag])

    def restore(self, tag):
        self.calls.append(("restore", tag))
        for tensor in self.held[tag] if tag == "pages" else ():
            tensor.zero_()
        return 100


ALLOCATOR = Allocator()


@hookimpl
def llmx_allocator(config, caps):
    return ALLOCATOR
"""


def test_sleep_asks_the_vendors_allocator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLM.sleep and wake_up through the vendor's own memory; in between nothing runs, afterwards answers are the same."""
    _install_omega(tmp_path, monkeypatch, OMEGA + ALLOCATOR)
    greedy = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    with LLM(platform="omega", dtype="float32", kv_cache_memory_bytes="128M", max_model_len=256) as llm:
        from omega_llmx.plugin import ALLOCATOR as allocator  # type: ignore[import-not-found]

        wanted = llm.generate(["One, two,"], greedy)[0].outputs[0].token_ids
        assert len(wanted) == 3
        assert len(allocator.held["pages"]) == 60 and len(allocator.held["weights"]) > 200  # k and v of 30 layers
        llm.sleep()
        assert allocator.calls == [("release", "weights", True), ("release", "pages", False)]
        with pytest.raises(RequestError, match="level is 2"):
            llm.sleep(level=2)
        with pytest.raises(RequestError, match="wake_up"):
            llm.generate(["One, two,"], greedy)
        llm.wake_up()
        assert allocator.calls[2:] == [("restore", "weights"), ("restore", "pages")]
        assert llm.generate(["One, two,"], greedy)[0].outputs[0].token_ids == wanted
        with pytest.raises(RequestError, match="does not sleep"):
            llm.wake_up()


def test_without_an_allocator_sleep_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install_omega(tmp_path, monkeypatch)
    reply = Subject("omega").driver().executor.control(Control("sleep", {"level": 1}))
    assert not reply.ok and "llmx_allocator" in reply.error


def test_runs_of_ops_go_through_the_vendors_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run between pages, at every size, before the first step; then each step calls what it gave, with tensors of the same shapes."""
    files = {
        "omega_llmx/__init__.py": "",
        "omega_llmx/probe.py": PROBE.format(present=True, score=1, why="1 omega"),
        "omega_llmx/plugin.py": OMEGA.replace("priority=80", 'tags=frozenset({"graph_safe"}), priority=80') + COMPILER,
        "omega_llmx/kernels.py": OMEGA_KERNELS.replace("a.kv_write", "_Nothing()").replace("a.attention", "_Average()").replace("\n\n\nclass Counted", PAGES),
    }
    entry = "[llmx.probes]\nomega = omega_llmx.probe:detect\n[llmx.platforms]\nomega = omega_llmx.plugin\n"
    install(tmp_path, monkeypatch, "llmx-platform-omega", files, entry)
    subject = Subject("omega")
    driver = subject.driver()
    from omega_llmx.plugin import COMPILER as compiler  # type: ignore[import-not-found]

    sizes = (1, 2, 4, 8, 16, 32, 64)
    assert len(compiler.examples) == 3 * len(sizes) and compiler.finished == 1  # before, between and after two layers' attention
    assert {shapes[0][0] for shapes in compiler.examples} == set(sizes)
    assert driver.executor.control(Control("stats")).value["compiled_now"] == 3 * len(sizes)
    before = compiler.calls
    _tokens(driver)
    assert compiler.calls == before + 3 * 3 and len(compiler.examples) == 3 * len(sizes)  # three steps
    subject.close()


PAGES = '''

class _Plain:
    """A kernel without weights that looks at nothing on the host."""

    def pack(self, weights, spec, uses):
        return None


class _Nothing(_Plain):
    def bind(self, spec, packed, states):
        return lambda rows, k, v: ()


class _Average(_Plain):
    def bind(self, spec, packed, states):
        return lambda rows, q, *kv: q.flatten(1) * 0.5


class Counted'''

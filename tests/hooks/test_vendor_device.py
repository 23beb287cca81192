"""What a vendor gives core's torch executor beside a device: a compiler. A fake one shows in what an engine's run does."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch").set_num_threads(1)

from llmx.executor import Control  # noqa: E402
from llmx.testing.conformance.subject import Subject  # noqa: E402
from tests.hooks.test_vendor_groups import OMEGA, OMEGA_KERNELS, _tokens  # noqa: E402
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

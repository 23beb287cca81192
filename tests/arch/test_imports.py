"""Who may import whom. Every check also has a self-test: a planted fault must be found."""

from __future__ import annotations

from pathlib import Path

import pytest

import arch_imports as rules
from arch_tree import Tree, plant

TREE = Tree()


def test_the_tree_is_read() -> None:
    for name in ("llmx.errors", "llmx.batch", "llmx.executor.base"):
        assert name in TREE.modules
    assert "llmx.kv.spec" in TREE.edges(lazy=False)["llmx.program.ops"]


def test_no_import_cycles() -> None:
    assert rules.cycles(TREE) == []


def test_cycles_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="import llmx.b\n", llmx__b="from llmx import c\n", llmx__c="import llmx.a\n")
    assert rules.cycles(tree) == ["import cycle: llmx.a, llmx.b, llmx.c"]


def test_typing_only_and_lazy_imports_make_no_cycle(tmp_path: Path) -> None:
    typing_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import llmx.b\n"
    tree = plant(tmp_path, llmx__a=typing_only, llmx__b="import llmx.c\n", llmx__c="def f():\n    import llmx.b\n")
    assert rules.cycles(tree) == []


def test_import_depth(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nimport depth: {len(rules.longest_chain(TREE))} of at most {rules.MAX_DEPTH}")
    assert rules.too_deep(TREE) == []


def test_deep_imports_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="import llmx.b\n", llmx__b="import llmx.c\n", llmx__c="")
    assert rules.too_deep(tree, limit=2) == ["import depth 3 > 2: llmx.a > llmx.b > llmx.c"]
    assert rules.too_deep(tree, limit=3) == []


def test_layers() -> None:
    assert rules.upward(TREE) == []


def test_upward_imports_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__sched__scheduler="", llmx__kv__pool="def f():\n    from llmx.sched import scheduler\n")
    assert [fault for fault in rules.upward(tree) if "imports llmx.sched.scheduler" in fault]


def test_a_module_without_a_layer_is_found(tmp_path: Path) -> None:
    assert rules.upward(plant(tmp_path, llmx__misc="")) == ["src/llmx/misc.py: no layer in tests/arch/arch_imports.py"]


def test_core_imports_no_front_end_and_no_platform() -> None:
    assert rules.backward(TREE) == []


def test_backward_imports_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__engine__engine="def f():\n    import llmx_cpu.native\n", llmx_cpu__native="import llmx_cli\n")
    assert len(rules.backward(tree)) == 2


def test_packages_beside_core_import_public_modules_only() -> None:
    assert rules.private(TREE) == []


def test_private_imports_are_found(tmp_path: Path) -> None:
    tree = plant(
        tmp_path,
        llmx__kv__manager="",
        llmx_cpu__a="from llmx.kv.manager import Manager\n",
        llmx_cpu__b="from llmx import __version__\nfrom llmx.executor import Step\n",
        llmx_cli__c="import llmx.engine._secret\n",
    )
    assert [fault.split(":")[0] for fault in rules.private(tree)] == ["src/llmx_cpu/a.py", "src/llmx_cli/c.py"]


def test_torch_stays_in_its_two_homes() -> None:
    assert rules.torch_imports(TREE) == []


def test_torch_imports_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__kv__pool="def f():\n    from torch import nn\n", llmx__executor__torch__run="import torch\n")
    assert {fault.split(":")[0] for fault in rules.torch_imports(tree)} == {"src/llmx/kv/pool.py"}


def test_libraries_are_declared() -> None:
    assert rules.undeclared(TREE) == []


def test_undeclared_libraries_are_found(tmp_path: Path) -> None:
    plant(tmp_path / "core", llmx__a="import os\nimport numpy\nimport yaml\nimport zmq\nfrom llmx import b\n")
    (tmp_path / "core" / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["numpy>=1", "pyzmq"]\n')
    tree = Tree(tmp_path)
    assert rules.undeclared(tree) == ["core/src/llmx/a.py:3: imports yaml, which core/pyproject.toml does not require"]

"""What may stand in one file. Every check also has a self-test: a planted fault must be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import arch_style as rules
from arch_tree import Tree, plant

TREE = Tree()
CHECKS = [
    rules.long_files,
    rules.long_functions,
    rules.vendor_words,
    rules.environment_reads,
    rules.global_state,
    rules.missing_docstrings,
    rules.missing_all,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_tree_keeps_the_rule(check: Callable[[Tree], list[str]]) -> None:
    assert check(TREE) == []


def test_long_files_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="x = 1\n" * 401, llmx__b="x = 1\n" * 400)
    assert rules.long_files(tree) == ["src/llmx/a.py: 401 lines > 400"]


def test_long_functions_are_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="class C:\n    async def f(self):\n" + "        x = 1\n" * 60, llmx__b="def g():\n" + "    x = 1\n" * 59)
    assert rules.long_functions(tree) == ["src/llmx/a.py:2: f has 61 lines > 60"]


@pytest.mark.parametrize("line", ['device = "cuda:0"', "is_rocm = 1", "x = f'{1}hip'", "from a import tpu", 'arch = "sm90"'])
def test_vendor_words_are_found(tmp_path: Path, line: str) -> None:
    assert len(rules.vendor_words(plant(tmp_path, llmx__a=line + "\n"))) == 1


@pytest.mark.parametrize("line", ["# as on cuda", '"""Not tied to cuda."""', "ship = relationship = 1", 'text = "barracuda"'])
def test_other_words_are_no_vendor_words(tmp_path: Path, line: str) -> None:
    assert rules.vendor_words(plant(tmp_path, llmx__a=line + "\n")) == []


@pytest.mark.parametrize("line", ["import os\nx = os.environ.get('A')", "import os\nx = os.getenv('A')", "from os import environ"])
def test_environment_reads_are_found(tmp_path: Path, line: str) -> None:
    tree = plant(tmp_path, llmx__a=line + "\n", llmx__resolve=line + "\n")
    assert [fault.split(":")[0] for fault in rules.environment_reads(tree)] == ["src/llmx/a.py"]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    global x\n    x = 1\n",
        "cache = {}\n",
        "from collections import defaultdict\nseen: dict = defaultdict(list)\n",
        "TABLE = {}\ndef f():\n    TABLE['a'] = 1\n",
        "NAMES = []\ndef f():\n    NAMES.append(1)\n",
    ],
)
def test_global_state_is_found(tmp_path: Path, text: str) -> None:
    assert len(rules.global_state(plant(tmp_path, llmx__a=text))) == 1


def test_constant_tables_are_no_state(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="__all__ = ['f']\n_TABLE = {'a': 1}\n\n\ndef f():\n    out = dict(_TABLE)\n    out['b'] = 2\n    return out\n")
    assert rules.global_state(tree) == []


def test_missing_docstrings_are_found(tmp_path: Path) -> None:
    text = '"""M."""\nclass A:\n    """A."""\n    def f(self): ...\n    def _g(self): ...\nclass _B:\n    def f(self): ...\n'
    tree = plant(tmp_path, llmx__a=text, llmx__b="")
    assert rules.missing_docstrings(tree) == ["src/llmx/a.py:4: A.f has no docstring", "src/llmx/b.py: no module docstring"]


def test_missing_all_is_found(tmp_path: Path) -> None:
    tree = plant(tmp_path, llmx__a="def f(): ...\n", llmx__b="__all__ = ['g', 'h']\ndef g(): ...\n")
    assert rules.missing_all(tree) == ["src/llmx/a.py: no __all__", "src/llmx/b.py: __all__ names h, which the module does not have"]

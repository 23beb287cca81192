"""The engine side runs without torch: every core module is imported in a process in which torch cannot be."""

from __future__ import annotations

import os
import subprocess
import sys

from arch_imports import TORCH_HOMES, TORCH_NAMES, within
from arch_tree import ROOT, Tree

SCRIPT = """
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{{name}}: {{error}}")
"""


def run(names: list[str]) -> str:
    """What the process prints: one line per module that could not be imported."""
    path = os.pathsep.join(str(p) for p in sorted([*ROOT.glob("*/src"), *ROOT.glob("*/*/src")]))
    script = SCRIPT.format(blocked=set(TORCH_NAMES), names=names)
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_imports_without_torch() -> None:
    names = [m.name for m in Tree().under("llmx") if not within(m.name, TORCH_HOMES) and m.name != "llmx.__main__"]
    assert len(names) > 20
    assert run(names) == ""


def test_a_torch_import_is_found() -> None:
    assert run(["json", "torch"]) == "torch: torch is blocked\n"

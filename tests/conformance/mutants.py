"""Mutants of the reference kernels: one operator, comparison or number changed at a time; and the tests of ops, run against one in this process."""

from __future__ import annotations

import ast
import copy
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.torch_executor import test_ops

__all__ = ["MODULES", "Mutant", "killed", "mutants", "passes"]

MODULES = ("basic", "attention", "moe", "recurrent")
# functions that the tests of ops do not call: whole models are compared with transformers for these (tests/torch_executor/test_models.py)
_ELSEWHERE = {"mla", "moe_experts", "_product"}
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or,
    ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change. module: under llmx.executor.torch.kernels."""

    module: str
    line: int
    was: str
    now: str
    source: ast.Module


def _places(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes inside functions that can be changed; annotations and docstrings are none."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and isinstance(node, ast.FunctionDef | ast.AnnAssign | ast.arg):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                    yield child
                    yield from walk(child)

    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name not in _ELSEWHERE):
        for node in walk(function):
            if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
                yield node
            elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
                yield node
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float):  # -1 becomes -2: +1 is often the same axis
                yield node
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
                yield node


def _change(node: ast.AST) -> None:
    if isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant):
        node.value = node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()


def mutants(count: int, seed: int) -> list[Mutant]:
    """So many, drawn at random among all places."""
    trees = {module: ast.parse(Path(str(import_module(f"llmx.executor.torch.kernels.{module}").__file__)).read_text()) for module in MODULES}
    places = [(module, index) for module, tree in trees.items() for index, _ in enumerate(_places(tree))]
    drawn = []
    for module, index in sorted(random.Random(seed).sample(places, count), key=lambda place: (MODULES.index(place[0]), place[1])):
        changed = copy.deepcopy(trees[module])
        node = next(itertools.islice(_places(changed), index, None))
        was = ast.unparse(node)
        _change(node)
        drawn.append(Mutant(module, getattr(node, "lineno", 0), was, ast.unparse(node), changed))
    return drawn


def _battery() -> Iterator[Callable[[], None]]:
    """Every test of ops with each of its parameters."""
    for name, test in vars(test_ops).items():
        if name.startswith("test_") and callable(test):
            axes = []
            for mark in getattr(test, "pytestmark", []):
                names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
                axes.append([dict(zip(names, [value] if len(names) == 1 else value, strict=True)) for value in mark.args[1]])
            for chosen in itertools.product(*axes):
                yield lambda test=test, chosen=chosen: test(**{key: value for part in chosen for key, value in part.items()})  # type: ignore[misc]


def passes() -> bool:
    """Whether every test of ops passes on the kernels as they are now."""
    for test in _battery():
        try:
            test()
        except Exception:  # noqa: BLE001 - whatever goes wrong
            return False
    return True


def killed(mutant: Mutant, patch: pytest.MonkeyPatch) -> bool:
    """Whether a test of ops fails with it."""
    real = import_module(f"llmx.executor.torch.kernels.{mutant.module}")
    made = ModuleType(real.__name__)
    try:
        exec(compile(ast.fix_missing_locations(mutant.source), str(real.__file__), "exec"), made.__dict__)
    except Exception:  # noqa: BLE001 - one that cannot even be imported is noticed
        return True
    with patch.context() as inner:
        for name in real.__all__:
            inner.setattr(real, name, getattr(made, name))
        return not passes()

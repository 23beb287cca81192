"""Rules about what stands in one file. Each check gives a list of faults, empty when the rule is kept."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from arch_tree import Module, Tree

MAX_FILE = 400
MAX_FUNCTION = 60

# Words of one vendor. Underscores and digits bound a word here: `is_cuda` and `cuda:0` are found, `cudaless` is not.
VENDOR = re.compile(
    r"(?<![a-z])(cuda|rocm|hip|xpu|tpu|nccl|rccl|xccl|cublas|cudnn|sm[0-9]{2,3}|nvidia|amd|intel|gaudi|ascend|metal|mps|ipex|triton|pallas|xla)(?![a-z])",
    re.IGNORECASE,
)

MUTABLE_CALLS = {"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict", "WeakKeyDictionary", "WeakValueDictionary"}
MUTATORS = {"append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault", "add", "discard", "appendleft", "sort", "reverse"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: Module) -> Iterator[Function]:
    """Every function and method, nested ones too."""
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            yield node


def long_files(tree: Tree, limit: int = MAX_FILE) -> list[str]:
    """Files above the line limit."""
    return [f"{m.path}: {m.lines} lines > {limit}" for m in tree.modules.values() if m.lines > limit]


def long_functions(tree: Tree, limit: int = MAX_FUNCTION) -> list[str]:
    """Functions above the line limit (last line - first line + 1)."""
    faults = []
    for module in tree.modules.values():
        for node in functions(module):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > limit:
                faults.append(f"{module.path}:{node.lineno}: {node.name} has {length} lines > {limit}")
    return faults


def vendor_words(tree: Tree) -> list[str]:
    """Vendor words in core and its front ends: in names and in strings; comments and docstrings may explain."""
    faults = []
    for module in tree.under("llmx", "llmx_cli", "llmx_server"):
        docs = {node.lineno for node in _docstrings(module.tree)}
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in docs):
                continue
            hit = VENDOR.search(token.string)
            if hit:
                faults.append(f"{module.path}:{token.start[0]}: vendor word {hit.group()!r}")
    return faults


def _docstrings(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            yield first.value


def environment_reads(tree: Tree) -> list[str]:
    """Uses of the process environment outside llmx.resolve."""
    faults = []
    for module in tree.modules.values():
        if module.name == "llmx.resolve":
            continue
        names = {i.name for i in module.imports}
        for node in ast.walk(module.tree):
            named = isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "getenvb", "putenv"}
            if named and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"os", "posix"}:
                faults.append(f"{module.path}:{node.lineno}: os.{node.attr}; only llmx.resolve reads the environment")
        faults += [f"{module.path}: imports {n}; only llmx.resolve reads the environment" for n in sorted(names & {"os.environ", "os.getenv", "os.environb"})]
    return faults


def global_state(tree: Tree) -> list[str]:
    """Module-level mutable state: `global`, lower-case containers, and changes of the upper-case ones (those are constants)."""
    faults = []
    for module in tree.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Global):
                faults.append(f"{module.path}:{node.lineno}: global {', '.join(node.names)}")
        containers = dict(_module_containers(module.tree))
        for name, line in containers.items():
            if name != "__all__" and not re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name):
                faults.append(f"{module.path}:{line}: {name} is a mutable container at module level; a constant is written in capitals")
        faults += [f"{module.path}:{line}: {name} is a constant and is changed here" for name, line in _changes(module.tree, set(containers) - {"__all__"})]
    return faults


def _module_containers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        called = value.func if isinstance(value, ast.Call) else None
        constructor = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp) or constructor in MUTABLE_CALLS:
            yield from ((target.id, node.lineno) for target in targets if isinstance(target, ast.Name))


def _changes(tree: ast.Module, names: set[str]) -> Iterator[tuple[str, int]]:
    def is_one(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in names

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del) and is_one(node.value):
            yield ast.unparse(node.value), node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS and is_one(node.func.value):
            yield ast.unparse(node.func.value), node.lineno
        elif isinstance(node, ast.AugAssign) and is_one(node.target):
            yield ast.unparse(node.target), node.lineno


def missing_docstrings(tree: Tree) -> list[str]:
    """Public modules, classes, functions and methods without a docstring."""
    faults = []
    for module in tree.modules.values():
        if any(part.startswith("_") and part != "__main__" for part in module.name.split(".")):
            continue
        if not ast.get_docstring(module.tree):
            faults.append(f"{module.path}: no module docstring")
        faults += [f"{module.path}:{line}: {name} has no docstring" for name, line in _undocumented(module.tree, "")]
    return faults


def _undocumented(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, int]]:
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            if not ast.get_docstring(child) and not _is_other_half(child):
                yield prefix + child.name, child.lineno
            if isinstance(child, ast.ClassDef):
                yield from _undocumented(child, f"{prefix}{child.name}.")


def _is_other_half(node: ast.ClassDef | Function) -> bool:
    """A setter or an overload: the getter or the implementation has the docstring."""
    names = {ast.unparse(d).rsplit(".", 1)[-1] for d in node.decorator_list}
    return bool(names & {"setter", "deleter", "overload"})


def missing_all(tree: Tree) -> list[str]:
    """Core modules without `__all__` (`__main__` and empty packages excepted), and names in it that the module does not have."""
    faults = []
    for module in tree.under("llmx"):
        names = exported(module)
        if names is None:
            if module.name != "llmx.__main__" and any(isinstance(n, ast.ClassDef | Function | ast.ImportFrom) for n in module.tree.body):
                faults.append(f"{module.path}: no __all__")
            continue
        lazy = "__getattr__" in {n.name for n in functions(module)}
        faults += [f"{module.path}: __all__ names {n}, which the module does not have" for n in names if not lazy and n not in _defined(module.tree)]
    return faults


def exported(module: Module) -> list[str] | None:
    """The names in `__all__`, sorted; None when there is none."""
    for node in module.tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "__all__" and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return sorted(ast.literal_eval(node.value))
    return None


def _defined(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | Function):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names

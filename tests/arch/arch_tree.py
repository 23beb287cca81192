"""The source tree as data: modules with their syntax trees, and who imports whom. Shared by all tests of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_FOLDERS = {".git", ".venv", ".venv-test", ".build", "dist", "build", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}


@dataclass(frozen=True)
class Import:
    """One imported module: `lazy` inside a function, `typing_only` under TYPE_CHECKING."""

    name: str  # absolute; `from a import b` is "a.b", whether b is a module or a name in a
    line: int
    lazy: bool
    typing_only: bool


@dataclass
class Module:
    """One Python file. name: its import name; path: relative to the tree's root."""

    name: str
    path: Path
    text: str
    tree: ast.Module = field(repr=False)

    @cached_property
    def lines(self) -> int:
        """Lines of the file."""
        return self.text.count("\n") + (not self.text.endswith("\n") and bool(self.text))

    @cached_property
    def imports(self) -> list[Import]:
        """Every import, wherever it stands."""
        return list(_imports(self.tree, False, False))


class Tree:
    """All first-party packages under `root`: every `src/<package>` folder at any depth up to three."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for src in sorted([*root.glob("src"), *root.glob("*/src"), *root.glob("*/*/src")]):
            if not SKIPPED_FOLDERS & set(src.relative_to(root).parts):
                for path in sorted(src.rglob("*.py")):
                    self._add(src, path)

    def _add(self, src: Path, path: Path) -> None:
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        self.modules[name] = Module(name, path.relative_to(self.root), text, ast.parse(text, str(path)))

    def under(self, *packages: str) -> Iterator[Module]:
        """The modules of these packages, in name order."""
        for name, module in sorted(self.modules.items()):
            if any(name == p or name.startswith(p + ".") for p in packages):
                yield module

    def edges(self, *, lazy: bool) -> dict[str, set[str]]:
        """module -> first-party modules it imports; `lazy` also counts imports inside functions. TYPE_CHECKING never counts."""
        graph: dict[str, set[str]] = {}
        for name, module in self.modules.items():
            found = {self.resolve(i.name) for i in module.imports if not i.typing_only and (lazy or not i.lazy)}
            graph[name] = {target for target in found if target is not None and target != name}
        return graph

    def resolve(self, name: str) -> str | None:
        """The first-party module that importing `name` reads: itself, or the one that holds the name; None for others'."""
        parent = name.rpartition(".")[0]
        return name if name in self.modules else parent if parent in self.modules else None


def _imports(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, lazy, typing_only) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield from (Import(f"{base}.{alias.name}", child.lineno, lazy, typing_only) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for part in child.body:
                yield from _imports(ast.Module([part], []), lazy, True)
            for part in child.orelse:
                yield from _imports(ast.Module([part], []), lazy, typing_only)
        else:
            yield from _imports(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda), typing_only)


def plant(root: Path, **files: str) -> Tree:
    """A small tree for self-tests: keyword `llmx__kv__pool="..."` becomes src/llmx/kv/pool.py, with its packages."""
    for key, text in files.items():
        path = root / "src" / (key.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        folder = path.parent
        while folder != root / "src":
            if not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text('"""Package."""\n', encoding="utf-8")
            folder = folder.parent
    return Tree(root)


def text_files(root: Path, *suffixes: str) -> Iterator[Path]:
    """Files with one of these suffixes ("" = no suffix), what is built or installed left out."""
    for path in sorted(root.rglob("*")):
        if path.suffix in suffixes and path.is_file() and not SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            yield path

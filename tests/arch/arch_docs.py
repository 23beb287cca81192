"""Rules about documents, versions and the public surface. Each check gives a list of faults, empty when the rule is kept."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from arch_imports import PUBLIC
from arch_style import exported
from arch_tree import SKIPPED_FOLDERS, Tree, text_files

MAX_WALK = 1500  # lines on the path of a request: schedule, submit, collect, update, server

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"(?:`|^|[|&;] *|\$ )make ([a-z][a-z-]*)", re.MULTILINE)
FOREIGN = re.compile(
    r"(?<![\w.~-])/(?:work|home|root|Users)/\w|/tmp/\w/"  # somebody's machine
    r"|\b(?:pypi|pythonhosted|npmjs|crates|anaconda)\.(?:org|com|io)\b|download\.pytorch\.org|--(?:extra-)?index-url"  # pip's own settings decide
)


def markdown(root: Path) -> list[Path]:
    """All Markdown files of the repository."""
    return list(text_files(root, ".md"))


def unlisted_modules(tree: Tree, page: str) -> list[str]:
    """Core modules that ARCHITECTURE.md has no line for, and files that it names but that are not there."""
    listed = set(re.findall(r"`([\w/.-]+\.py)`", page))
    faults = [f"{m.path}: no line in ARCHITECTURE.md" for m in tree.under("llmx") if m.text.strip() and not {str(m.path), short(m.path)} & listed]
    real = {str(p.relative_to(tree.root)) for p in text_files(tree.root, ".py")} | {short(m.path) for m in tree.modules.values()}
    return faults + [f"ARCHITECTURE.md names {name}, which is not there" for name in sorted(listed) if "/" in name and name not in real]


def short(path: Path) -> str:
    """A source file below its import root: llmx/kv/manager.py."""
    return ("/" + str(path)).split("/src/", 1)[-1]


def walk_lines(tree: Tree, page: str) -> dict[str, int]:
    """The files of ARCHITECTURE.md's section "The walk, counted" and their lines."""
    section = page.split("## The walk, counted", 1)[1].split("\n## ", 1)[0]
    names = re.findall(r"^\| `([\w/.-]+\.py)`", section, re.MULTILINE)
    lines = {short(m.path): m.lines for m in tree.modules.values()}
    return {name: lines[name] for name in names}


def broken_links(root: Path) -> list[str]:
    """Relative links in Markdown whose file or heading does not exist."""
    faults = []
    for path in markdown(root):
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.exists():
                faults.append(f"{path.relative_to(root)}: link to {target}: no such file")
            elif anchor and file.suffix == ".md" and anchor not in set(_anchors(file.read_text(encoding="utf-8"))):
                faults.append(f"{path.relative_to(root)}: link to {target}: no such heading")
    return faults


def _anchors(text: str) -> Iterator[str]:
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", text), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def missing_paths(root: Path) -> list[str]:
    """Files and folders of the repository that a document names in backticks and that do not exist."""
    tops = {path.name for path in root.iterdir()}
    return [
        f"{path.relative_to(root)}: {name} does not exist"
        for path in markdown(root)
        for name in sorted(set(re.findall(r"`([\w.-]+/[\w./-]*)`", path.read_text(encoding="utf-8"))))
        if name.split("/")[0] in tops - SKIPPED_FOLDERS and not (root / name).exists()
    ]


def bad_code_blocks(root: Path) -> list[str]:
    """Python blocks in Markdown that do not parse."""
    faults = []
    for path in markdown(root):
        for indent, language, body in FENCE.findall(path.read_text(encoding="utf-8")):
            if language in {"python", "py"}:
                try:
                    ast.parse(re.sub(rf"^{indent}", "", body, flags=re.MULTILINE))
                except SyntaxError as error:
                    faults.append(f"{path.relative_to(root)}: python block does not parse: {error}")
    return faults


def unknown_make_targets(root: Path) -> list[str]:
    """`make X` in a document without a target X in the Makefile."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    return [
        f"{path.relative_to(root)}: make {name}: no such target"
        for path in markdown(root)
        for name in MAKE.findall(path.read_text(encoding="utf-8"))
        if name not in targets
    ]


def unknown_hooks(tree: Tree, root: Path) -> list[str]:
    """Names `llmx_...` in documents that are neither a hook nor one of our packages."""
    specs = tree.modules["llmx.hooks.specs"].tree
    hooks = {node.name for node in ast.walk(specs) if isinstance(node, ast.FunctionDef)}
    packages = {name.split(".")[0] for name in tree.modules}
    return [
        f"{path.relative_to(root)}: {name} is no hook"
        for path in markdown(root)
        for name in sorted(set(re.findall(r"`(llmx_\w+)`", path.read_text(encoding="utf-8"))))
        if name not in hooks | packages and not name.endswith("_NAME")
    ]


def foreign_words(root: Path) -> list[str]:
    """Absolute paths of somebody's machine and package-index hosts, in any text file."""
    faults = []
    for path in text_files(root, ".py", ".md", ".toml", ".txt", ".cff", ".yml", ".yaml", ".h", ".cpp", ".sh", ".cmake", ".json", ""):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        faults += [f"{path.relative_to(root)}:{n}: {hit.group()}" for n, line in enumerate(text.splitlines(), 1) if (hit := FOREIGN.search(line))]
    return faults


def versions(root: Path) -> dict[str, str]:
    """Every place that states the version of llmx."""
    found = {}
    for path in text_files(root, ".toml"):
        if path.name == "pyproject.toml" and (project := tomllib.loads(path.read_text(encoding="utf-8")).get("project")):
            found[str(path.relative_to(root))] = project["version"]
            for need in project.get("dependencies", []):
                if match := re.fullmatch(r"(llmx-[\w-]+)\s*==\s*([\w.]+)", need):
                    found[f"{path.relative_to(root)}: {match[1]}"] = match[2]
    for path in [*root.glob("*/src/*/__init__.py"), *root.glob("*/*/src/*/__init__.py")]:
        if match := re.search(r'^__version__(?:: str)? = "([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE):
            found[str(path.relative_to(root))] = match[1]
    citation = root / "CITATION.cff"
    if citation.exists() and (match := re.search(r"^version: *\"?([\w.]+)", citation.read_text(encoding="utf-8"), re.MULTILINE)):
        found["CITATION.cff"] = match[1]
    return found


def public_api(tree: Tree) -> str:
    """The public modules and their `__all__`, one line each: what tests/arch/public_api.txt holds."""
    lines = []
    for module in tree.under(*PUBLIC):
        names = exported(module)
        if names and not any(part.startswith("_") for part in module.name.split(".")):
            lines.append(f"{module.name}: {' '.join(names)}")
    return "\n".join(lines) + "\n"


def config_fields(tree: Tree) -> dict[str, int]:
    """Fields per class of llmx.config."""
    counts = {}
    for node in tree.modules["llmx.config"].tree.body:
        if isinstance(node, ast.ClassDef):
            counts[node.name] = sum(isinstance(field, ast.AnnAssign) for field in node.body)
    return counts


if __name__ == "__main__":  # python tests/arch/arch_docs.py > tests/arch/public_api.txt
    print(public_api(Tree()), end="")

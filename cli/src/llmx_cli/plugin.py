"""`llmx plugin new NAME`: writes a package of one's own, which installs, works and has a test."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from llmx_cli.group import group

__all__ = ["Kind", "app", "new", "package_files"]

app = group("Write a package of your own.")


class Kind(StrEnum):
    """What a package can be."""

    platform = "platform"
    kernels = "kernels"
    plugin = "plugin"


# kind -> distribution, import name, and template -> file (P: the package's folder)
_LAYOUTS: dict[Kind, tuple[str, str, dict[str, str]]] = {
    Kind.platform: (
        "llmx-platform-{name}",
        "llmx_{name}",
        {
            "platform/src_init.py": "P/__init__.py",
            "platform/probe.py": "P/probe.py",
            "platform/plugin.py": "P/plugin.py",
            "platform/kernels.py": "P/kernels.py",
            "platform/test_conformance.py": "tests/test_conformance.py",
        },
    ),
    Kind.kernels: (
        "llmx-kernels-{name}",
        "llmx_kernels_{name}",
        {
            "platform/src_init.py": "P/__init__.py",
            "kernels/plugin.py": "P/plugin.py",
            "platform/kernels.py": "P/kernels.py",
            "kernels/test_kernels.py": "tests/test_kernels.py",
        },
    ),
    Kind.plugin: ("llmx-{name}", "llmx_{name}", {"plugin/src_init.py": "P/__init__.py", "plugin/test_plugin.py": "tests/test_plugin.py"}),
}
_NEXT = {
    Kind.platform: "llmx conformance --platform {name}",
    Kind.kernels: "llmx explain --platform torch",
    Kind.plugin: "llmx config show",
}


def package_files(name: str, kind: Kind) -> tuple[str, dict[str, str]]:
    """(distribution, path -> text) of a new package."""
    dist, package, layout = _LAYOUTS[kind]
    folder = files("llmx_cli") / "templates"
    wanted = {f"{kind}/pyproject.toml": "pyproject.toml", f"{kind}/README.md": "README.md", **layout}
    texts = {
        place.replace("P/", f"src/{package.format(name=name)}/"): (folder / f"{template}.txt").read_text(encoding="utf-8").replace("{{name}}", name)
        for template, place in wanted.items()
    }
    return dist.format(name=name), texts


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: lower-case letters, digits, underscores.")],
    kind: Annotated[Kind, typer.Option("--kind", help="A platform, kernels for other platforms, or a plugin.")] = Kind.platform,
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="Where the package's folder is made.")] = Path("."),
) -> None:
    """Write a package that works as written: metadata, code, README and a test."""
    _check_name(name, kind)
    dist, texts = package_files(name, kind)
    root = into / dist
    if root.exists():
        raise typer.BadParameter(f"{root} is there already: name another folder with --into, or remove it")
    for place, text in texts.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {root}: {', '.join(sorted(texts))}")
    typer.echo(f"next: pip install -e {root} && {_NEXT[kind].format(name=name)}")


def _check_name(name: str, kind: Kind) -> None:
    """Raise BadParameter for a name that is no module's, or that an installed plugin of this kind has."""
    from llmx.config import PlatformConfig
    from llmx.hooks.loader import PluginLoader

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise typer.BadParameter(f"NAME is {name!r}: it must begin with a lower-case letter and have lower-case letters, digits and underscores alone")
    group_name = {Kind.platform: "llmx.platforms", Kind.kernels: "llmx.kernels", Kind.plugin: "llmx.plugins"}[kind]
    taken = [item for item in PluginLoader.discover(PlatformConfig()).group(group_name) if item.name == name]
    if taken:
        raise typer.BadParameter(f"NAME is {name!r}, which {taken[0].dist} has already: take another name")
    package = _LAYOUTS[kind][1].format(name=name)
    if find_spec(package) is not None:
        raise typer.BadParameter(f"NAME is {name!r}, but a package {package} is installed already: take another name")

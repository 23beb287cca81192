"""Checks of installed packages: versions that do not fit, a foreign `llmx`, a wrong build of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from llmx_cli.doctor.finding import Finding

__all__ = ["check_foreign", "check_requirements", "check_torch", "check_versions"]


def check_versions() -> Iterator[Finding]:
    """Packages of one release must have one version."""
    from llmx.engine.installed import installed, version_skew

    found = installed()
    skew = version_skew(found)
    if skew is not None:
        yield Finding("versions", "error", skew[0], _place("llmx-core"), skew[1])
    else:
        yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in found.items()))


def check_requirements() -> Iterator[Finding]:
    """What llmx packages need must be there in a version that they take."""
    wrong = [
        Finding(
            "requirements",
            "error",
            f"{dist.name} {dist.version} needs {need}, found {have or 'nothing'}",
            str(dist.locate_file("")),
            f"pip install '{need}'",
        )
        for dist in distributions()
        if (dist.name or "").lower().startswith("llmx-")
        for need, have in _unmet(dist)
    ]
    yield from wrong or [Finding("requirements", "ok", "what llmx packages need is installed")]


def _unmet(dist: Distribution) -> Iterator[tuple[str, str | None]]:
    """(requirement, installed version) that do not fit; those of an extra only where all that it asks for is installed."""
    needs: dict[str, list[tuple[Requirement, str | None]]] = {}
    for text in dist.requires or ():
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue
        extra = next(iter(re.findall(r"extra\s*==\s*['\"]([\w-]+)", text)), "")
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            needs.setdefault(extra, []).append((need, _version(need.name)))
    for extra, found in needs.items():
        if extra and any(have is None for _, have in found):
            continue
        for need, have in found:
            if have is None or not (have in need.specifier or need.specifier.contains(have, prereleases=True)):
                yield f"{need.name}{need.specifier}", have


def check_foreign() -> Iterator[Finding]:
    """A package named `llmx`, which is not ours, has the same import name."""
    try:
        foreign = distribution("llmx")
    except PackageNotFoundError:
        yield Finding("foreign llmx", "ok", "no other package has the import name llmx")
        return
    what = f"the package llmx {foreign.version} is installed: it is another project, and its files and those of llmx-core lie in one folder"
    yield Finding("foreign llmx", "error", what, str(foreign.locate_file("llmx")), "pip uninstall -y llmx && pip install --force-reinstall llmx-core")


def check_torch(wanted: str | None, device: str | None = None) -> Iterator[Finding]:
    """The build of torch, where the platform in use runs on torch; read from its files, not imported.

    wanted: distribution of that platform, None when it needs no torch. device: the torch device, such as "cpu" or "NAME:0".
    """
    if wanted is None:
        return
    try:
        torch = distribution("torch")
    except PackageNotFoundError:
        yield Finding("torch", "error", f"{wanted} runs on torch, which is not installed", "", "pip install 'llmx-core[torch]'")
        return
    place = Path(str(torch.locate_file("torch/version.py")))
    builds = _torch_builds(place)
    kind = (device or "cpu").partition(":")[0]
    if kind != "cpu" and kind not in builds:
        what = f"torch {torch.version} is built for {', '.join(builds) or 'CPUs only'}, the device is {device}"
        yield Finding("torch", "error", what, str(place), f"pip install --force-reinstall torch, from the index of its builds for {kind}")
    else:
        yield Finding("torch", "ok", f"torch {torch.version}, built for {', '.join(builds) or 'CPUs only'}")


def _torch_builds(version_file: Path) -> list[str]:
    """Device kinds that a build of torch names in its version.py: every variable there that has a version."""
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError:
        return []
    found = re.findall(r"^(\w+)(?:: [^=\n]+)? = ['\"][^'\"]+['\"]$", text, re.MULTILINE)
    return [name for name in found if not name.startswith("_") and name not in ("git_version", "debug")]


def _version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _place(name: str) -> str:
    try:
        return str(distribution(name).locate_file(""))
    except PackageNotFoundError:
        return ""

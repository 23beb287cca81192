"""The package of a platform: entry points, a probe that imports nothing heavy, an import without side effects, public modules only."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmx.hooks.loader import Found
from llmx.hooks.types import Detection
from llmx.resolve import probe_environment
from llmx.testing.conformance.outcome import NotRun

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["CHECKS", "PUBLIC_MODULES"]

PUBLIC_MODULES = (
    "llmx.hooks", "llmx.platform", "llmx.program", "llmx.executor", "llmx.errors", "llmx.config", "llmx.structured", "llmx.answers", "llmx.draft",
    "llmx.testing", "llmx.record",
)  # fmt: skip
_HANG_S = 120
_IMPORT = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
import llmx.hooks
before, environ, path = set(sys.modules), dict(os.environ), list(sys.path)
import importlib
importlib.import_module(sys.argv[2])
print(json.dumps({"new": sorted(set(sys.modules) - before), "environ": environ == dict(os.environ), "path": path == sys.path}))
"""


def entry(subject: Subject, group: str) -> Found:
    """The platform's entry point of a group."""
    found = [item for item in subject.loader.group(group) if item.name == subject.name]
    assert found, f"there is no entry point {subject.name!r} in group {group}"
    return found[0]


def entry_points_of_both_groups(subject: Subject) -> None:
    """A probe and a platform under one name, from one distribution with a version."""
    probe, platform = entry(subject, "llmx.probes"), entry(subject, "llmx.platforms")
    assert probe.dist == platform.dist, f"the probe comes from {probe.dist}, the platform from {platform.dist}"
    assert platform.version, f"{platform.dist} has no version"
    info = subject.manager.hook.llmx_platform_info()
    assert info.name == subject.name, f"PlatformInfo.name is {info.name!r}, the entry point is called {subject.name!r}"
    assert info.dist == platform.dist, f"PlatformInfo.dist is {info.dist!r}, it was installed by {platform.dist!r}"


def _of_a_package(target: str) -> str:
    """The package of a target. Raises NotRun for one of core's own."""
    top = target.split(".")[0].partition(":")[0]
    if top == "llmx":
        raise NotRun("part of core")
    return top


def the_probe_says_why(subject: Subject) -> None:
    """A Detection with one readable line, also with an empty environment."""
    for environ in (probe_environment(), {}):
        results = {result.name: result for result in subject.loader.probe_all(environ)}
        result = results[subject.name]
        assert not result.error, f"the probe raised: {result.error.strip().splitlines()[-1]}"
        detection: Detection | None = result.detection
        assert detection is not None and detection.why and "\n" not in detection.why, f"the probe gave {detection}: `why` must be one readable line"
        assert subject.emulated or detection.present or detection.named, f"not present here: {detection.why}; --emulate runs the suite on torch's cpu device"


def _imported(subject: Subject, target: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _IMPORT, json.dumps(sys.path), target.partition(":")[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_HANG_S, env=subject.environ)
    assert done.returncode == 0, f"importing {target} fails in a process of its own: {done.stderr.strip().splitlines()[-1:]}"
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def the_probe_imports_the_standard_library_alone(subject: Subject) -> None:
    """Probes of all installed platforms are imported at every start; llmx itself and the own package do not count."""
    target = entry(subject, "llmx.probes").target
    own = {"llmx", _of_a_package(target)}
    foreign = sorted({name.split(".")[0] for name in _imported(subject, target)["new"]} - own - set(sys.stdlib_module_names))
    assert not foreign, f"{target} imports {', '.join(foreign)}"


def importing_the_platform_changes_nothing(subject: Subject) -> None:
    """No torch, no change of the environment or of the module path: side effects belong into hooks, in the engine process."""
    target = entry(subject, "llmx.platforms").target
    found = _imported(subject, target)
    heavy = sorted({name.split(".")[0] for name in found["new"]} & {"torch", "jax", "tensorflow"})
    assert not heavy, f"importing {target} imports {', '.join(heavy)}: do that in llmx_device_runtime or llmx_executor"
    assert found["environ"], f"importing {target} changes os.environ"
    assert found["path"], f"importing {target} changes sys.path"


def only_public_modules_are_imported(subject: Subject) -> None:
    """Of llmx; so that a release may change everything else."""
    top = _of_a_package(entry(subject, "llmx.platforms").target)
    faults = [f"{path.name}:{line}: {name}" for path in _sources(top) for line, name in _llmx_imports(path) if not _public(name)]
    assert not faults, f"private: {'; '.join(faults)}; public are {', '.join(PUBLIC_MODULES)}"


def _public(name: str) -> bool:
    private = any(part.startswith("_") for part in name.split("."))
    return not private and any(name == public or name.startswith(f"{public}.") for public in PUBLIC_MODULES)


def _sources(package: str) -> Iterator[Path]:
    spec = find_spec(package)
    assert spec is not None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    yield from (path for folder in folders for path in sorted(folder.rglob("*.py")))
    if not folders and spec.origin:
        yield Path(spec.origin)


def _llmx_imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" if node.module == "llmx" else node.module for alias in node.names]
        yield from ((node.lineno, name) for name in names if name == "llmx" or name.startswith("llmx."))  # type: ignore[attr-defined]


CHECKS = (
    entry_points_of_both_groups,
    the_probe_says_why,
    the_probe_imports_the_standard_library_alone,
    importing_the_platform_changes_nothing,
    only_public_modules_are_imported,
)

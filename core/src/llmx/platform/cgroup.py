"""Control groups: the folders whose limits hold for this process, its own group's and those of all groups around it.

Versions 1 and 2, and both side by side. What cannot be read is left out: then no limit is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["limit_folders"]


def limit_folders(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """(version, folder) of each group that holds this process, the innermost first. controller: memory, cpu.

    root: where proc and sys are (tests). In a container its own group is often mounted as the outermost folder, while
    /proc still names the path outside of it; then the folders that exist are given.
    """
    base = root / "sys/fs/cgroup"
    for version, top, path in _memberships(controller, root, base):
        for folder in (path, *path.parents):
            full = top / folder
            if full.is_dir():
                yield version, full


def _memberships(controller: str, root: Path, base: Path) -> Iterator[tuple[int, Path, Path]]:
    """(version, mount of the hierarchy, path of this process in it)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", f"1:{controller}:/"]
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = Path(path.lstrip("/") or ".")
        if number == "0" and not controllers:
            unified = base / "unified"
            yield 2, unified if unified.is_dir() else base, relative
        elif controller in controllers.split(","):
            yield 1, next((base / name for name in (controllers, controller) if (base / name).is_dir()), base / controller), relative

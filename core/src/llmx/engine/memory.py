"""Memory that this process may still take: what the machine has free, cut to the limits of its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from llmx.platform.cgroup import limit_folders
from llmx.weights.gguf_source import split_paths

__all__ = ["available_bytes", "cgroup_limit", "file_bytes", "spare_bytes"]

_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"
_RESERVE_SHARE = 0.05  # of what is free; for buffers that grow while serving, in this process and its parent
_LEAST_RESERVE = 64 << 20  # bytes
_NAMES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def spare_bytes(root: Path = Path("/")) -> int:
    """Bytes that a cache may take so that the kernel does not have to kill: what is available, less a reserve."""
    free = available_bytes(root)
    return max(free - max(int(free * _RESERVE_SHARE), _LEAST_RESERVE), 0)


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated before the kernel reclaims or kills. root: where proc and sys are (tests)."""
    return min([_meminfo(root), *(max(limit - used, 0) for limit, used in _cgroups(root))])


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """The least memory limit of this process's control groups in bytes; None without one."""
    return min((limit for limit, _ in _cgroups(root)), default=None)


def file_bytes(path: str) -> int:
    """Bytes of a model's weight files: a GGUF file with its other parts, or a folder's safetensors."""
    paths = Path(path).glob("*.safetensors") if Path(path).is_dir() else map(Path, split_paths(path))
    return sum(part.stat().st_size for part in paths)


def _meminfo(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2 << 30  # no /proc: assume a small machine rather than a large one


def _cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without what the kernel drops before it kills) of each control group that has a limit, in bytes."""
    for version, folder in limit_folders("memory", root):
        limit_name, used_name = _NAMES[version]
        try:
            text = (folder / limit_name).read_text().strip()
            if text != "max" and int(text) < _UNLIMITED:
                used = int((folder / used_name).read_text()) - _file_cache(folder / "memory.stat")
                yield int(text), max(used, 0)
        except (OSError, ValueError):
            continue


def _file_cache(path: Path) -> int:
    """Bytes of files without recent use. In v1 the plain name is the group's own, total_ is with the groups inside it."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            found[name] = int(value)
    return found.get("total_inactive_file", found.get("inactive_file", 0))

"""Memory that this process may still take: what the machine has free, cut to its cgroup's limit."""

from __future__ import annotations

from pathlib import Path

__all__ = ["available_bytes", "cgroup_limit"]

_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated before the kernel reclaims or kills. root: where proc and sys are (tests)."""
    free = _meminfo(root)
    for limit, used in _cgroup(root):
        if limit < _UNLIMITED:
            free = min(free, max(limit - used, 0))
    return free


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """The memory limit of this process's cgroup in bytes; None without one."""
    return min((limit for limit, _ in _cgroup(root) if limit < _UNLIMITED), default=None)


def _meminfo(root: Path) -> int:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2 << 30  # no /proc: assume a small machine rather than a large one


def _cgroup(root: Path) -> list[tuple[int, int]]:
    """(limit, used without reclaimable file cache) of the cgroup, v2 then v1; where the files exist."""
    base = root / "sys/fs/cgroup"
    pairs = []
    for limit_name, used_name, stat_name in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            limit = (base / limit_name).read_text().strip()
            if limit == "max":
                continue
            used = int((base / used_name).read_text())
            pairs.append((int(limit), max(used - _file_cache(base / stat_name), 0)))
        except (OSError, ValueError):
            continue
    return pairs


def _file_cache(path: Path) -> int:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0

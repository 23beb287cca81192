"""Fake control groups: the files of /proc and /sys that name a process's groups and their limits."""

from __future__ import annotations

from pathlib import Path

__all__ = ["cgroup"]


def cgroup(root: Path, version: int, controller: str, path: str, groups: dict[str, dict[str, str]]) -> Path:
    """Write them under `root`: the process is in `path`; groups: files of each group, by its path. Returns root."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    line = f"0::/{path}" if version == 2 else f"7:{controller}:/{path}\n0::/"
    (root / "proc/self/cgroup").write_text(f"9:name=systemd:/x\n{line}\n")
    top = root / "sys/fs/cgroup" / ("" if version == 2 else controller)
    for name, files in groups.items():
        folder = top / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    return root

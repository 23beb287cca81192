"""FolderResolver: adapters by name from the subfolders of one folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from llmx.config import EngineConfig
from llmx.lora.settings import CONFIG_NAME

__all__ = ["FolderResolver"]


class FolderResolver:
    """Finds `<folder>/<name>` where it holds an adapter. Names that lead out of the folder are nobody's."""

    def __init__(self, config: EngineConfig) -> None:
        self._folder = Path(config.lora.folder).expanduser().resolve()

    def __call__(self, name: str) -> str | None:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or "\0" in name or PurePosixPath(name).is_absolute():
            return None
        found = self._folder.joinpath(*parts)
        try:
            inside = found.resolve().is_relative_to(self._folder)
            return str(found) if inside and (found / CONFIG_NAME).is_file() else None
        except (OSError, ValueError):  # too long for a file name, or no text that a file name can have
            return None

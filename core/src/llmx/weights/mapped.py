"""MappedFile: a model file mapped read-only into memory, and the checks that every format shares."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from llmx.errors import ModelError

if TYPE_CHECKING:  # whoever reads headers only needs no numpy
    import numpy as np

__all__ = ["MappedFile"]

_LFS_PREFIX = b"version https://git-lfs"


class MappedFile:
    """A file's bytes, read-only: `view` for headers, `bytes` as one uint8 array for tensors; pages are read when first touched and stay evictable.

    Raises ModelError for a path that is missing, unreadable, not a regular file, empty, or a Git LFS pointer.
    The mapping lives as long as any view of it: `close` only lets go of this reference, so no view can dangle.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.view = memoryview(self._map())

    def _map(self) -> mmap.mmap:
        try:
            with Path(self.path).open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ModelError("not a regular file", path=self.path)
                if status.st_size == 0:
                    raise ModelError("the file is empty: download it again", path=self.path)
                head = file.read(len(_LFS_PREFIX))
                if head == _LFS_PREFIX:
                    raise ModelError("this is a Git LFS pointer, not the model: run `git lfs pull` where it was cloned", path=self.path)
                return mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"cannot be read: {error.strerror or error}", path=self.path) from error

    @property
    def bytes(self) -> np.ndarray:
        """uint8 [size]."""
        import numpy as np

        return np.frombuffer(self.view, dtype=np.uint8)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.view)

    def close(self) -> None:
        """Let go of the mapping. Idempotent."""
        self.view = memoryview(b"")

"""FileStore: uploaded and written files in one local folder, which one server at a time may use."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from llmx.errors import ConfigError, RequestError
from llmx_server.body import shorten
from llmx_server.caller import Caller
from llmx_server.errors import NotFound
from llmx_server.saved_json import save_json

__all__ = ["MAX_FILE_BYTES", "FileStore", "StorageFull", "new_id"]

MAX_FILE_BYTES = 200 * 2**20  # of one upload: OpenAI's limit for batches


class StorageFull(RequestError):
    """The folder has no room, by its limit or the disk's."""

    status = 507


def new_id(prefix: str) -> str:
    """An id that nobody can guess and that sorts after those made before it."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


class FileStore:
    """FOLDER/files holds NAME.json, OpenAI's file object and its owner, and NAME.data for each file. limit_bytes: of all data.

    clock: unix time. Raises ConfigError when the folder cannot be used or another server uses it.
    """

    def __init__(self, folder: str, limit_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.folder = Path(folder).expanduser()
        self._limit, self.clock = limit_bytes, clock
        self._files = self.folder / "files"
        try:
            self._files.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("a+")
        except OSError as error:
            raise ConfigError(f"--files-dir is {folder!r}, which cannot be used: {error.strerror or error}", field="files_dir") from error
        self._take(folder)
        self._objects: dict[str, dict[str, Any]] = {}
        for path in self._files.glob("*.json"):
            found = msgspec.json.decode(path.read_bytes())
            if path.with_suffix(".data").exists():
                self._objects[found["id"]] = found
        for path in self._files.glob("*.data"):
            if path.stem not in self._objects:
                path.unlink()  # an upload that broke off

    def _take(self, folder: str) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            other = self._lock.read(20).strip() or "unknown"
            self._lock.close()
            message = f"--files-dir is {folder!r}, which another server uses (process {other}): stop it, or give this one a folder of its own"
            raise ConfigError(message, field="files_dir") from error
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def close(self) -> None:
        """Let another server have the folder."""
        self._lock.close()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one["bytes"] for one in self._objects.values())

    def all(self, caller: Caller) -> list[dict[str, Any]]:
        """The file objects that the caller sees, oldest first."""
        self._sweep()
        return sorted((one for one in self._objects.values() if caller.sees(one.get("owner", ""))), key=lambda one: str(one["id"]))

    def get(self, file_id: str, caller: Caller, field: str = "file_id") -> dict[str, Any]:
        """A file object. Raises NotFound, naming `field`, also where the caller may not see it."""
        self._sweep()
        found = self._objects.get(file_id)
        if found is None or not caller.sees(found.get("owner", "")):
            raise NotFound(f"file {shorten(file_id)} is not here: GET /v1/files lists those that are", field=field)
        return found

    def path(self, file_id: str, caller: Caller) -> Path:
        """Where the data of a file lies. Raises NotFound."""
        return self._files / f"{self.get(file_id, caller)['id']}.data"

    def upload(self, source: BinaryIO, filename: str, purpose: str, expires_in_s: int | None, owner: str = "") -> dict[str, Any]:
        """Keep a copy of an upload; blocks. owner: the name of a Caller. Raises StorageFull."""
        source.seek(0, os.SEEK_END)
        size = source.tell()
        source.seek(0)
        if self.size + size > self._limit:
            message = f"the file has {size} bytes and the others {self.size}, at most {self._limit} are kept (--files-max-bytes): delete some"
            raise StorageFull(message, field="file")
        file_id = new_id("file-")
        path = self._files / f"{file_id}.data"
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(source, file)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StorageFull(f"the file cannot be kept: {error.strerror or error}", field="file") from error
        return self._add(file_id, size, filename, purpose, expires_in_s, owner)

    def adopt(self, file_id: str, path: Path, filename: str, expires_in_s: int | None, owner: str) -> None:
        """Take over a file that a batch has written, under a new id. Done twice it is as done once."""
        if path.exists():  # its description first: data without one is taken for an upload that broke off
            self._add(file_id, path.stat().st_size, filename, "batch_output", expires_in_s, owner)
            path.replace(self._files / f"{file_id}.data")

    def delete(self, file_id: str, caller: Caller) -> None:
        """Remove a file. Raises NotFound."""
        self.get(file_id, caller)
        self._remove(file_id)

    def _add(self, file_id: str, size: int, filename: str, purpose: str, expires_in_s: int | None, owner: str) -> dict[str, Any]:
        now = int(self.clock())
        found = {
            "id": file_id,
            "object": "file",
            "bytes": size,
            "created_at": now,
            "expires_at": None if expires_in_s is None else now + expires_in_s,
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
            "status_details": None,
            "owner": owner,
        }
        save_json(self._files / f"{file_id}.json", found)
        self._objects[file_id] = found
        return found

    def _sweep(self) -> None:
        now = self.clock()
        for file_id in [one["id"] for one in self._objects.values() if one["expires_at"] is not None and one["expires_at"] <= now]:
            self._remove(file_id)

    def _remove(self, file_id: str) -> None:
        del self._objects[file_id]
        (self._files / f"{file_id}.json").unlink(missing_ok=True)
        (self._files / f"{file_id}.data").unlink(missing_ok=True)

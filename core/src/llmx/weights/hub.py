"""Hub: fetches a model that the user named, or adapters that --lora-hub allows, and nothing else, from the Hugging Face hub into the shared cache.

huggingface_hub speaks the protocol. Its own downloader is not used: it throws away what it has when a download breaks, and it
leaves it to each file to find the disk full. Here the space is checked first, and a broken download goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from llmx.errors import ModelError
from llmx.record import record
from llmx.weights.hub_cache import COMMIT, HubCache
from llmx.weights.hub_errors import NotOnHub, explained, transient
from llmx.weights.hub_name import INDEX, HubName, safe_file_name, select_files, select_tokenizer
from llmx.weights.safetensors import index_placement
from llmx.weights.transfer import OnTransfer, Transfer, file_size

__all__ = ["Hub"]

_ETAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHUNK = 1 << 20  # bytes between two writes: what a broken connection costs at most
_ATTEMPTS = 3  # of a file whose connection breaks in ways that the library does not repeat by itself
_MAX_FILE = 50_000_000_000  # bytes that the hub sends over plain HTTP
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_SPARE = 16 << 20  # bytes of the disk that stay free


@record
class _Remote:
    """A file of a repository. sha256: of its content, where the hub keeps it as a large file."""

    name: str
    size: int
    sha256: str | None


@record
class Hub:
    """The hub and the cache that it fills. endpoint, token None: those of huggingface_hub (HF_ENDPOINT; HF_TOKEN or `hf auth login`)."""

    cache: HubCache
    token: str | None = None
    offline: bool = False
    endpoint: str | None = None

    def fetch(self, name: HubName, on_transfer: OnTransfer | None = None, *, tokenizer: bool = False) -> str:
        """Path of the newest `name`, fetched where it is not here. tokenizer: leave the weights out.

        Raises ModelError: no such model, no access, no space, no connection, offline.
        """
        if self._is_offline():
            raise ModelError(f"{name} cannot be fetched: {self.offline_reason()}")
        with _library(), explained(name, self):
            return _Fetch(self, name, on_transfer or _silent, tokenizer).run()

    def find(self, name: HubName, *, tokenizer: bool = False) -> str:
        """Path of `name` in the cache; no connection is made. Raises ModelError saying how to fetch it."""
        path = self.cache.find(name, tokenizer=tokenizer)
        if path is None:
            offline = f" (but not here: {self.offline_reason()}, so nothing may be fetched)" if self._is_offline() else ""
            raise ModelError(f"{name} is not on this machine: {self.cache.missing(name)}. Fetch it with: llmx pull {name}{offline}")
        return path

    def ensure(self, name: HubName, on_transfer: OnTransfer | None = None, *, tokenizer: bool = False) -> str:
        """Path of `name`: from the cache without any connection when it is there, else fetched. Raises ModelError."""
        path = self.cache.find(name, tokenizer=tokenizer)
        if path is None and not self._is_offline():
            return self.fetch(name, on_transfer, tokenizer=tokenizer)
        return path or self.find(name, tokenizer=tokenizer)

    def ensure_adapter(self, name: HubName, check: Callable[[Path], None]) -> str:
        """Folder of a LoRA adapter: from the cache without any connection when it is there, else fetched, its two files alone.

        check: is given the folder when adapter_config.json is there, before the weights are fetched. Raises ModelError (NotOnHub) and what check raises.
        """
        commit = self.cache.commit(name)
        if commit is not None and all((self.cache.snapshot(name.repo, commit) / file).is_file() for file in ADAPTER_FILES):
            return str(self.cache.snapshot(name.repo, commit))
        if self._is_offline():
            raise ModelError(f"{name} is not on this machine, and cannot be fetched: {self.offline_reason()}")
        with _library(), explained(name, self):
            return _Fetch(self, name, _silent, False).adapter(check)

    def page(self, name: HubName) -> str:
        """Address of the model's page, for people."""
        return f"{self.address()}/{name.repo}"

    def address(self) -> str:
        """Address of the hub."""
        from huggingface_hub import constants

        return self.endpoint or str(constants.ENDPOINT)

    def offline_reason(self) -> str:
        """Which setting forbids connections."""
        return "--offline is set" if self.offline else "HF_HUB_OFFLINE is set"

    def _is_offline(self) -> bool:
        from huggingface_hub import constants

        return self.offline or bool(constants.HF_HUB_OFFLINE)


class _Fetch:
    """One model being fetched."""

    def __init__(self, hub: Hub, name: HubName, on_transfer: OnTransfer, tokenizer: bool) -> None:
        self._hub, self._name, self._on_transfer, self._tokenizer = hub, name, on_transfer, tokenizer and name.quant is None
        self._folder = hub.cache.repo_folder(name.repo)
        self._total_done = self._total_size = 0

    def run(self) -> str:
        files, commit = self._list()
        selection = select_tokenizer(self._name, files) if self._tokenizer else select_files(self._name, files)  # refuses before anything is fetched
        weights = selection.weights
        if selection.kind == "safetensors" and not weights:
            shards = sorted(set(index_placement(self._get(files[INDEX], commit)).values()))
            for shard in shards:
                if shard not in files:
                    raise ModelError(f"{self._name.repo} lacks {shard}, which its {INDEX} names: the repository is incomplete")
            weights = (INDEX, *shards)
        self._bring([files[file] for file in (*selection.side, *weights)], commit)
        return self._hub.find(self._name, tokenizer=self._tokenizer)

    def adapter(self, check: Callable[[Path], None]) -> str:
        """The folder of a LoRA adapter."""
        files, commit = self._list()
        missing = [file for file in ADAPTER_FILES if file not in files]
        if missing:
            raise NotOnHub(f"{self._name.repo} has no {' and no '.join(missing)}, so it is no LoRA adapter as peft saves it")
        check(self._get(files[ADAPTER_FILES[0]], commit).parent)
        self._bring([files[file] for file in ADAPTER_FILES], commit)
        return str(self._hub.cache.snapshot(self._name.repo, commit))

    def _bring(self, needed: list[_Remote], commit: str) -> None:
        snapshot = self._hub.cache.snapshot(self._name.repo, commit)
        self._check_space([file for file in needed if not (snapshot / file.name).exists()])
        self._total_done, self._total_size = 0, sum(file.size for file in needed)
        for file in needed:  # weights last: a model whose weights are there is complete
            self._get(file, commit)
        self._keep_revision(commit)

    def _list(self) -> tuple[dict[str, _Remote], str]:
        """Files of the repository by name, and the commit that the revision is at."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self._hub.endpoint, token=self._hub.token, **_agent())
        info = api.model_info(self._name.repo, revision=self._name.revision, files_metadata=True, timeout=30)
        if not COMMIT.fullmatch(info.sha or ""):
            raise ModelError(f"{self._hub.address()} answers with the commit {info.sha!r} for {self._name}: it is no hub that llmx understands")
        files = {}
        for entry in info.siblings or ():
            if safe_file_name(entry.rfilename):
                sha256 = entry.lfs["sha256"] if entry.lfs else None
                files[entry.rfilename] = _Remote(entry.rfilename, int(entry.size or 0), sha256)
        return files, str(info.sha)

    def _check_space(self, files: list[_Remote]) -> None:
        needed = 0
        for file in files:
            if file.size > _MAX_FILE:
                raise ModelError(
                    f"{file.name} has {file_size(file.size)}, and above {file_size(_MAX_FILE)} the hub sends files by its Xet protocol only:"
                    f" fetch it with `hf download {self._name.repo}`, llmx finds it then"
                )
            blob = self._folder / "blobs" / str(file.sha256)
            if _size_of(blob) != file.size:
                needed += max(file.size - _size_of(blob.with_name(f"{blob.name}.incomplete")), 0)
        place = self._hub.cache.folder.absolute()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if needed and needed + _SPARE > free:
            raise ModelError(
                f"{self._name} needs {file_size(needed)} ({needed} bytes) more on {self._hub.cache.folder}, which has {file_size(free)} ({free} bytes) free:"
                " free some space (`llmx list` and `llmx rm` help), or give another place with --download-dir"
            )

    def _get(self, file: _Remote, commit: str) -> Path:
        """The file in the snapshot, fetched if it is not there."""
        pointer = self._hub.cache.snapshot(self._name.repo, commit) / file.name
        if not pointer.exists():
            blob = self._get_blob(file, commit)
            pointer.parent.mkdir(parents=True, exist_ok=True)
            fresh = pointer.with_name(f".{pointer.name}.{secrets.token_hex(4)}")
            try:
                fresh.symlink_to(os.path.relpath(blob, pointer.parent))
            except OSError:  # a file system without links
                fresh = blob
            fresh.replace(pointer)
            self._report(file, file.size, 0)
        self._total_done += file.size
        return pointer

    def _get_blob(self, file: _Remote, commit: str) -> Path:
        for attempt in range(1, _ATTEMPTS + 1):
            url, location, size, etag = self._locate(file, commit)
            blob = self._folder / "blobs" / etag
            try:
                with _locked(self._hub.cache.folder / ".locks" / self._folder.name / f"{etag}.lock"):
                    if _size_of(blob) != size:
                        self._download(file, url, location, blob, size)
                return blob
            except Exception as error:
                if attempt == _ATTEMPTS or not transient(error):
                    raise
        raise AssertionError  # the loop returns or raises

    def _locate(self, file: _Remote, commit: str) -> tuple[str, str, int, str]:
        """(address, where it leads, bytes, etag) of a file."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(self._name.repo, file.name, revision=commit, endpoint=self._hub.endpoint)
        found = get_hf_file_metadata(url, token=self._hub.token, **_agent())
        etag = found.etag or ""
        if found.commit_hash != commit or found.size is None or not _ETAG.fullmatch(etag):
            raise ModelError(f"{url} answers with commit {found.commit_hash!r}, size {found.size} and etag {etag!r}: it is no hub that llmx understands")
        return url, found.location, found.size, etag

    def _download(self, file: _Remote, url: str, location: str, blob: Path, size: int) -> None:
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = build_hf_headers(token=self._hub.token, **_agent())
        if urlsplit(url).netloc != urlsplit(location).netloc:
            headers.pop("authorization", None)  # storage hosts have a signed address instead; the token is for the hub alone
        part = blob.with_name(blob.name + ".incomplete")
        part.parent.mkdir(parents=True, exist_ok=True)
        have = _size_of(part)
        if have > size:
            part.unlink()
            have = 0
        self._report(file, have, have)
        with part.open("ab") as target:
            http_get(location, _Sink(target, lambda done: self._report(file, done, have)), resume_size=have, headers=headers, expected_size=size)  # type: ignore[arg-type]
        if file.sha256 is not None and _sha256(part) != file.sha256:
            part.unlink()
            raise ModelError(f"{file.name} of {self._name.repo} did not arrive as the hub has it (sha256 differs): it was deleted; run the command again")
        part.replace(blob)

    def _report(self, file: _Remote, done: int, resumed: int) -> None:
        self._on_transfer(Transfer(file.name, done, file.size, resumed, self._total_done + done, max(self._total_size, self._total_done + file.size)))

    def _keep_revision(self, commit: str) -> None:
        """Only now the revision means the new commit: an update that breaks off leaves the old one in use."""
        if self._name.revision != commit:
            ref = self._folder / "refs" / self._name.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            fresh = ref.with_name(f".{ref.name}.{secrets.token_hex(4)}")
            fresh.write_text(commit, encoding="ascii")
            fresh.replace(ref)


class _Sink:
    """The file that the library writes to; tells how long it is."""

    def __init__(self, file: BinaryIO, on_size: Callable[[int], None]) -> None:
        self._file, self._on_size = file, on_size
        self.seek, self.tell, self.truncate = file.seek, file.tell, file.truncate

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        self._on_size(self._file.tell())
        return written


@contextmanager
def _library() -> Iterator[None]:
    """huggingface_hub for the time of a download: without its progress bars and its warnings.

    The warnings name signed addresses; what ends a download is told by the error. Telemetry, for which the library asks the hub
    for more, is switched off for good.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars  # type: ignore[attr-defined]

    constants.HF_HUB_DISABLE_TELEMETRY = True
    chunk = constants.DOWNLOAD_CHUNK_SIZE
    logger, bars = logging.getLogger("huggingface_hub"), not are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.ERROR)
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    if bars:
        disable_progress_bars()
    try:
        yield
    finally:
        constants.DOWNLOAD_CHUNK_SIZE = chunk
        logger.setLevel(level)
        if bars:
            enable_progress_bars()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes (huggingface_hub's too, which takes the same lock) from the same file; waits for them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _agent() -> dict[str, Any]:
    return {"library_name": "llmx"}


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _silent(transfer: Transfer) -> None:
    """Says nothing."""

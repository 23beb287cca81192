"""HubCache: models of the hub that are on this disk, in the cache layout that huggingface_hub and other tools share. No network.

    <folder>/models--org--name/refs/<revision>              the commit that a branch or tag was at when it was last fetched
    <folder>/models--org--name/snapshots/<commit>/<file>    links to ../../blobs/<etag>
    <folder>/models--org--name/blobs/<etag>[.incomplete]
"""

from __future__ import annotations

import os
import re
import shutil
from difflib import get_close_matches
from pathlib import Path

from llmx.errors import ModelError
from llmx.record import record
from llmx.weights.hub_name import HubName, gguf_models, quant_label, select_files
from llmx.weights.safetensors import checkpoint_files

__all__ = ["COMMIT", "CachedModel", "HubCache", "Removal"]

COMMIT = re.compile(r"[0-9a-f]{40}")


@record
class CachedModel:
    """One model in the cache. path: what a start opens; size: bytes of its files; modified: seconds since 1970; files: (name, bytes)."""

    name: HubName
    commit: str
    kind: str  # gguf or safetensors
    path: str
    size: int
    modified: float
    files: tuple[tuple[str, int], ...]


@record
class Removal:
    """What `HubCache.remove` will delete: names of files for the user, and the bytes that become free."""

    name: HubName
    files: tuple[str, ...]
    size: int
    whole: bool  # the whole repository, every revision


class HubCache:
    """The cache in a folder. download_dir None: the folder of huggingface_hub (HF_HUB_CACHE, HF_HOME)."""

    def __init__(self, download_dir: str | None = None) -> None:
        if download_dir is None:
            from huggingface_hub import constants  # 10 ms, and only for those who name a hub model

            download_dir = constants.HF_HUB_CACHE
        self.folder = Path(download_dir).expanduser()

    def repo_folder(self, repo: str) -> Path:
        """Where a repository lies, if it is there."""
        return self.folder / f"models--{repo.replace('/', '--')}"

    def commit(self, name: HubName) -> str | None:
        """The commit that the revision of `name` stands for here."""
        if COMMIT.fullmatch(name.revision):
            return name.revision
        try:
            commit = (self.repo_folder(name.repo) / "refs" / name.revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        return commit if COMMIT.fullmatch(commit) else None

    def snapshot(self, repo: str, commit: str) -> Path:
        """Folder of a revision's files, if it is there."""
        return self.repo_folder(repo) / "snapshots" / commit

    def find(self, name: HubName, *, tokenizer: bool = False) -> str | None:
        """Path of the complete model, a .gguf file or a directory; None when it is not here, or only in part. tokenizer: that is all that is needed."""
        commit = self.commit(name)
        if commit is None:
            return None
        snapshot = self.snapshot(name.repo, commit)
        if tokenizer and name.quant is None and (snapshot / "tokenizer.json").is_file():
            return str(snapshot)
        return self._find_in(name, snapshot)

    def _find_in(self, name: HubName, snapshot: Path) -> str | None:
        try:
            selection = select_files(name, _files(snapshot))
            if selection.kind == "gguf":
                return str(snapshot / selection.weights[0])
            checkpoint_files(str(snapshot))
        except ModelError:
            return None  # an interrupted download, or another model of the same repository
        return str(snapshot)

    def missing(self, name: HubName) -> str:
        """What is here of `name` and what is not, in words for an error message."""
        commit = self.commit(name)
        if commit is None:
            known = [other for other in _refs(self.repo_folder(name.repo)) if other != name.revision]
            if known:
                return f"revision {name.revision!r} is not in {self.folder}, only {', '.join(sorted(known))}"
            near = get_close_matches(name.repo, sorted({model.name.repo for model in self.models()}), n=1)
            return f"nothing of it is in {self.folder}" + (f" (did you mean {near[0]!r}?)" if near else "")
        files = _files(self.snapshot(name.repo, commit))
        try:
            selection = select_files(name, files)
            checkpoint_files(str(self.snapshot(name.repo, commit)))
        except ModelError as error:
            return f"of its revision {commit[:12]} only {len(files)} files are in {self.folder}: {error}"
        return f"its {selection.kind} files are in {self.folder}"

    def models(self) -> list[CachedModel]:
        """All complete models, by name; a repository with several GGUF files is several models."""
        found = []
        for folder in sorted(self.folder.glob("models--*--*")):
            repo = folder.name.removeprefix("models--").replace("--", "/", 1)
            named = {commit: revision for revision, commit in sorted(_refs(folder).items(), key=lambda item: item[0] == "main")}
            for snapshot in sorted((folder / "snapshots").glob("*")):
                if COMMIT.fullmatch(snapshot.name):
                    found += self._models_in(repo, named.get(snapshot.name, snapshot.name), snapshot)
        return sorted(found, key=lambda model: (str(model.name).lower(), model.commit))

    def _models_in(self, repo: str, revision: str, snapshot: Path) -> list[CachedModel]:
        files = _files(snapshot)
        ggufs = gguf_models(files)
        quants: list[str | None] = [None] if "config.json" in files else []
        labels = [quant_label(model) for model in ggufs]
        # two files of one quantisation are told apart by their names
        quants += [label if labels.count(label) == 1 else Path(model).name for model, label in zip(ggufs, labels, strict=True)]
        models = {}
        for quant in quants:
            name = HubName(repo, revision, quant)
            path = self._find_in(name, snapshot)
            if path is not None and path not in models:
                models[path] = self._describe(name, snapshot, path)
        return list(models.values())

    def _describe(self, name: HubName, snapshot: Path, path: str) -> CachedModel:
        selection = select_files(name, _files(snapshot))
        weights = selection.weights or tuple(os.path.relpath(file, snapshot) for file in checkpoint_files(path)[0])
        sizes = tuple((file, (snapshot / file).stat().st_size) for file in (*selection.side, *weights))
        modified = max((snapshot / file).stat().st_mtime for file in weights)
        return CachedModel(name, snapshot.name, selection.kind, path, sum(size for _, size in sizes), modified, sizes)

    def removal(self, name: HubName, *, every_revision: bool) -> Removal:
        """What removing `name` deletes: the whole repository when neither quantisation nor revision is named. Raises ModelError when it is not here."""
        folder = self.repo_folder(name.repo)
        if not folder.is_dir():
            raise ModelError(f"{name.repo} is not in {self.folder}; `llmx list` shows what is")
        if every_revision and name.quant is None:
            files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
            return Removal(name, tuple(sorted(str(path.relative_to(folder)) for path in files)), sum(path.stat().st_size for path in files), True)
        commit = self.commit(name)
        snapshot = None if commit is None else self.snapshot(name.repo, commit)
        if snapshot is None or not snapshot.is_dir():
            raise ModelError(f"revision {name.revision!r} of {name.repo} is not in {self.folder}; `llmx list` shows what is")
        present = _files(snapshot)
        chosen = present if name.quant is None else list(select_files(name, present).weights)
        doomed = {_first_hop(snapshot / file) for file in chosen} - _blobs_of_others(folder, {snapshot / file for file in chosen})
        return Removal(name, tuple(str((snapshot / file).relative_to(folder)) for file in chosen), sum(blob.stat().st_size for blob in doomed), False)

    def remove(self, removal: Removal) -> None:
        """Deletes what `removal` lists, and the blobs that nothing else uses. Raises ModelError for what the system refuses."""
        folder = self.repo_folder(removal.name.repo)
        try:
            if removal.whole:
                shutil.rmtree(folder)
                shutil.rmtree(self.folder / ".locks" / folder.name, ignore_errors=True)
                return
            pointers = {folder / file for file in removal.files}
            kept = _blobs_of_others(folder, pointers)
            for pointer in pointers:
                blob = _first_hop(pointer)
                pointer.unlink()
                if blob not in kept and blob != pointer:
                    blob.unlink(missing_ok=True)
            _drop_empty(folder)
        except OSError as error:
            raise ModelError(f"cannot be removed: {error.strerror or error}", path=str(error.filename or folder)) from error


def _files(snapshot: Path) -> list[str]:
    """Files of a snapshot that are really there, by their names in the repository."""
    return [str(path.relative_to(snapshot)) for path in sorted(snapshot.rglob("*")) if path.is_file()] if snapshot.is_dir() else []


def _refs(folder: Path) -> dict[str, str]:
    refs = folder / "refs"
    found = {}
    for path in refs.rglob("*") if refs.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):  # such a one is just being written
            found[str(path.relative_to(refs))] = path.read_text(encoding="ascii", errors="replace").strip()
    return found


def _first_hop(path: Path) -> Path:
    """The blob that a file of a snapshot links to. Only the first link is followed: what a blob itself links to is shared with other repositories."""
    return Path(os.path.abspath(path.parent / os.readlink(path))) if path.is_symlink() else path


def _blobs_of_others(folder: Path, pointers: set[Path]) -> set[Path]:
    return {_first_hop(path) for path in (folder / "snapshots").rglob("*") if path.is_file() and path not in pointers}


def _drop_empty(folder: Path) -> None:
    """Snapshots without weights go, with their refs; so does a repository without snapshots."""
    for snapshot in list((folder / "snapshots").glob("*")):
        if not any(file.endswith((".safetensors", ".gguf")) for file in _files(snapshot)):
            kept = _blobs_of_others(folder, {path for path in snapshot.rglob("*") if path.is_file()})
            for path in [path for path in snapshot.rglob("*") if path.is_symlink()]:
                if _first_hop(path) not in kept:
                    _first_hop(path).unlink(missing_ok=True)
            shutil.rmtree(snapshot)
            for revision, commit in _refs(folder).items():
                if commit == snapshot.name:
                    (folder / "refs" / revision).unlink()
    if not any((folder / "snapshots").glob("*")):
        shutil.rmtree(folder)

"""A Hugging Face hub on localhost: the requests that huggingface_hub makes for a download, and the faults that real ones have."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

__all__ = ["COMMIT", "FakeHub", "Repo", "Seen", "fake_hub"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE = 4096  # bytes from which on a file is kept in "large file storage", which is another host


@dataclass(frozen=True)
class Seen:
    """One request. host: hub or storage."""

    host: str
    method: str
    path: str
    authorization: str | None
    range: str | None


@dataclass
class Repo:
    """A repository. gated: status for those without the token `good`; refs: revision -> commit; cut: file -> bytes after which its connection ends, once."""

    files: dict[str, bytes]
    gated: int | None = None
    refs: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    cut: dict[str, int] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)


@dataclass
class FakeHub:
    """The hub. broken: status that storage answers to everything, None: works. moved: old name -> new name of a repository."""

    repos: dict[str, Repo] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    storage: str = ""
    broken: int | None = None

    def paths(self, method: str = "GET") -> list[str]:
        """Paths asked for, without their queries."""
        return [urlsplit(one.path).path for one in self.seen if one.method == method]


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A running hub and its storage host, stopped at the end."""
    hub = FakeHub()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, host)) for host in ("hub", "storage")]
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(hub: FakeHub, host: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self) -> None:
            hub.seen.append(Seen(host, self.command, self.path, self.headers.get("Authorization"), self.headers.get("Range")))
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            old = next((old for old in hub.moved if f"/{old}/" in self.path), None)
            if old is not None:
                self._send(307, b"", {"Location": self.path.replace(f"/{old}/", f"/{hub.moved[old]}/")})
            elif host == "storage":
                self._storage(parts)
            elif parts[:2] == ["api", "models"] and len(parts) >= 4:
                self._info("/".join(parts[2:4]), "/".join(parts[5:]) or "main")
            elif len(parts) >= 5 and parts[2] == "resolve":
                self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
            else:
                self._send(404, b"no such address")

        def _repo(self, name: str) -> Repo | None:
            repo = hub.repos.get(name)
            if repo is None:
                self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return repo

        def _info(self, name: str, revision: str) -> None:
            repo = self._repo(name)
            if repo is None:
                return
            commit = revision if revision in repo.refs.values() else repo.refs.get(revision)
            if commit is None:
                self._send(404, b'{"error": "Invalid rev id"}', {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
                return
            siblings = [_sibling(file, data) for file, data in repo.files.items()]
            body = {"_id": "1", "id": name, "modelId": name, "sha": commit, "private": False, "gated": bool(repo.gated), "siblings": siblings}
            self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def _file(self, name: str, revision: str, file: str) -> None:
            repo = self._repo(name)
            if repo is None:
                return
            commit = repo.refs.get(revision, revision)
            if repo.gated and self.headers.get("Authorization") != "Bearer good":
                self._send(repo.gated, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to model {name} is restricted."})
            elif file not in repo.files or commit not in repo.refs.values():
                self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            elif len(repo.files[file]) >= _LARGE:
                etag, size = hashlib.sha256(repo.files[file]).hexdigest(), str(len(repo.files[file]))
                headers = {"Location": f"{hub.storage}/{name}/{file}?signature=1", "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": size}
                self._send(302, b"", {"X-Repo-Commit": commit, **headers})
            else:
                self._content(repo, file, {"X-Repo-Commit": commit, "ETag": f'"{_blob_id(repo.files[file])}"'})

        def _storage(self, parts: list[str]) -> None:
            repo, file = hub.repos["/".join(parts[:2])], "/".join(parts[2:])
            if hub.broken is not None:
                self._send(hub.broken, b"storage is down")
            else:
                self._content(repo, file, {})

        def _content(self, repo: Repo, file: str, headers: dict[str, str]) -> None:
            data, status = repo.files[file], 200
            if file in repo.corrupt:
                data = bytes(len(data))
            first = int(self.headers["Range"].removeprefix("bytes=").split("-")[0]) if "Range" in self.headers else 0
            if first:
                headers, status = {**headers, "Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}, 206
            cut = repo.cut.pop(file, None) if self.command == "GET" else None
            self._send(status, data[first:], headers, cut)

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

    return Handler


def _sibling(file: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": file, "size": len(data), "blobId": _blob_id(data)}
    if len(data) >= _LARGE:
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

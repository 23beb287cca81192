"""The listening socket, TCP or Unix, taken before anything slow starts, so that an address in use is told at once."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from llmx.config import ServerConfig
from llmx.errors import ConfigError
from llmx_server.origins import read_origins

__all__ = ["BACKLOG", "bind", "bind_unix", "listen", "url_of", "uses_tls"]

BACKLOG = 2048  # connections that may wait to be accepted
_GRPC = ("grpc", "grpc_health", "grpc_reflection")


def listen(config: ServerConfig) -> socket.socket:
    """The socket that a configuration asks for: `uds` when it is set, else host and port.

    Raises ConfigError, also for what else would end the start only once the model is loaded: a gRPC port, TLS files and origins that cannot be used.
    """
    read_origins(config.allowed_origins)
    if uses_tls(config):
        from llmx_server.tls import tls_context  # reads ssl

        tls_context(config)
    sock = bind_unix(config.uds) if config.uds else bind(config.host, config.port)
    try:
        _check_grpc(config)
    except ConfigError:
        sock.close()
        raise
    return sock


def uses_tls(config: ServerConfig) -> bool:
    """Whether a file for TLS is given."""
    return bool(config.ssl_certfile or config.ssl_keyfile or config.ssl_ca_certs)


def _check_grpc(config: ServerConfig) -> None:
    """gRPC's own library takes the port, later."""
    if config.grpc_port is None:
        return
    missing = [name for name in _GRPC if find_spec(name) is None]
    if missing:
        raise ConfigError(f"grpc_port is {config.grpc_port}, but {', '.join(missing)} cannot be imported: install llmx-server[grpc]", field="grpc_port")
    if config.grpc_port and config.grpc_port == config.port and not config.uds:
        raise ConfigError(f"grpc_port is {config.grpc_port}, which is the port of HTTP: choose another with --grpc-port", field="grpc_port")
    bind(config.host, config.grpc_port, option="grpc-port").close()


def url_of(sock: socket.socket, root_path: str, scheme: str = "http") -> str:
    """Where clients reach a listening socket: a URL, or `unix:PATH`."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"{scheme}://[{host}]:{port}{root_path}" if ":" in host else f"{scheme}://{host}:{port}{root_path}"


def bind_unix(path: str) -> socket.socket:
    """A Unix socket at `path`; who may use it is what the folder's and the umask's permissions say.

    A socket that a dead server left behind is replaced. Raises ConfigError when a server answers there, when something else stands
    there, or when it cannot be made.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(Path(path))
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"uds is {path!r}: cannot listen there: {error.strerror or error}", field="uds") from error
    except ConfigError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _clear(path: Path) -> None:
    """Remove a socket at which nobody listens."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"uds is {str(path)!r}: a file that is no socket stands there, choose another path", field="uds")
    except FileNotFoundError:
        return
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"uds is {str(path)!r}: another server listens there, stop it or choose another path", field="uds")


def bind(host: str, port: int, option: str = "port") -> socket.socket:
    """A bound TCP socket; port 0 takes a free one. SO_REUSEADDR lets a restart bind at once.

    Raises ConfigError that names host, port and the option that chooses another when the address is taken, forbidden or unknown.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, OverflowError) as error:
        raise ConfigError(f"host {host!r} port {port} is no address to listen on: {error}", field="host") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(_reason(error, host, port, option), field=option.replace("-", "_")) from error
    sock.setblocking(False)
    return sock


def _reason(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another process: stop it or choose another with --{option}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be opened by this user: choose one above 1023 with --{option}"
    return f"cannot listen on {host} port {port}: {os.strerror(error.errno) if error.errno else error}"

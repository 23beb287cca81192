"""The listening socket, taken before anything slow starts, so that a port in use is told at once."""

from __future__ import annotations

import errno
import os
import socket

from llmx.errors import ConfigError

__all__ = ["BACKLOG", "bind"]

BACKLOG = 2048  # connections that may wait to be accepted


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes a free one. SO_REUSEADDR lets a restart bind at once.

    Raises ConfigError that names host and port when the address is taken, forbidden or unknown.
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
        raise ConfigError(_reason(error, host, port), field="port") from error
    sock.setblocking(False)
    return sock


def _reason(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another process: stop it or choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be opened by this user: choose one above 1023 with --port"
    return f"cannot listen on {host} port {port}: {os.strerror(error.errno) if error.errno else error}"

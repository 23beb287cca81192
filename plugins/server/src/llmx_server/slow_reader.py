"""What happens to a client that does not read its answer.

Its own stream waits once the socket's buffers are full, and what is generated meanwhile is kept as one sum, at most one
answer long. Cut off when it has taken nothing for `server.reader_timeout_s`: nothing can be told to who does not read, so the
log says it, and the request is aborted like that of any client that went away.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["reader_protocol"]

_log = logging.getLogger("llmx.server")


def reader_protocol(timeout_s: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, with connections closed whose client takes nothing for so long; 0: never."""

    class ReaderTimeout(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        """asyncio pauses writing while the buffer of a connection is full."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._cut: asyncio.TimerHandle | None = None

        def pause_writing(self) -> None:
            """The client does not keep up."""
            super().pause_writing()
            if timeout_s > 0:
                self._look_later()

        def resume_writing(self) -> None:
            """It has caught up."""
            self._forgive()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            """It is gone."""
            self._forgive()
            super().connection_lost(exc)

        def _forgive(self) -> None:
            if self._cut is not None:
                self._cut.cancel()
                self._cut = None

        def _look_later(self) -> None:
            left = self.transport.get_write_buffer_size()
            self._cut = asyncio.get_running_loop().call_later(timeout_s, self._look, left)

        def _look(self, left_before: int) -> None:
            if self.transport.get_write_buffer_size() < left_before:
                self._look_later()  # slow, but it reads
            else:
                client = self.transport.get_extra_info("peername")
                _log.warning("client %s has not read its answer for %g s (--reader-timeout): cut off", client, timeout_s)
                self.transport.abort()

    return ReaderTimeout

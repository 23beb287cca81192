"""A rank other than 0: `python -m llmx.engine.rank FD`, with its end of the socket pair to rank 0. It ends with rank 0, whatever it is doing."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from dataclasses import replace

from llmx.errors import EngineDead
from llmx.executor.distributed.serve import RankServer
from llmx.executor.distributed.wire import Begin, Link, Said, ToRank
from llmx.hooks.collectives import Communicator, ProcessGroup

__all__ = ["end_with_rank_0", "main"]


def main(arguments: list[str]) -> int:
    """Run one rank until it is told to end; the exit status."""
    for group_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they reach the whole group; rank 0 says when to end
        signal.signal(group_signal, signal.SIG_IGN)
    end = socket.socket(fileno=int(arguments[0]))
    threading.Thread(target=end_with_rank_0, args=(end.fileno(),), daemon=True).start()
    link = Link(end, ToRank)
    try:
        begin: Begin = link.receive()
        server = _prepared(begin, link)
        if server is not None:
            server.run()
        return 0 if server is not None else 1
    except EngineDead:  # rank 0 is gone
        return 1


def _prepared(begin: Begin, link: Link) -> RankServer | None:
    from llmx.engine.start import prepare  # after the connection: rank 0 sees at once when this process ends

    config = replace(begin.config, platform=replace(begin.config.platform, rank=begin.rank))
    try:
        ready = prepare(config, begin.user_set, rank=begin.rank)
    except Exception as error:  # noqa: BLE001 - process border: rank 0 must learn why
        link.send(Said(None, str(error), type(error).__name__))
        return None
    group = ProcessGroup(begin.size, begin.rank, begin.address, tuple(begin.fds))

    def join() -> Communicator:
        return ready.platform.communicator(ready.config, ready.caps, replace(group))

    link.send(Said(ready.plan.shared))
    return RankServer(ready.executor, ready.plan, link, join)


def end_with_rank_0(fd: int) -> None:
    """What a thread does that sleeps until rank 0 hangs up and then ends the process: no orphan keeps the memory of a model. fd: this end."""
    poll = select.poll()
    poll.register(fd, select.POLLHUP | select.POLLRDHUP)
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

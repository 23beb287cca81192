"""What a rank other than 0 does: it takes what rank 0 says and does the same with its own executor, until it is told to end."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.batch import StepOutput
from llmx.errors import PlatformError
from llmx.executor.base import Control, Executor, Late, Ticket
from llmx.executor.distributed.adapters import unpacked, without_memory
from llmx.executor.distributed.wire import Ask, Finish, Link, Run, Said
from llmx.hooks.collectives import Communicator
from llmx.kv.spec import GroupPlan, KVPlan

if TYPE_CHECKING:
    from llmx.platform.plan import Plan

__all__ = ["RankServer", "checksum"]


def checksum(out: StepOutput) -> int:
    """Of what a step drew: equal on all ranks, or they are not the same engine any more."""
    drafts = b"" if out.drafts is None else out.drafts.tobytes()
    return zlib.crc32(out.count.tobytes() + out.tokens.tobytes() + drafts)


class RankServer:
    """One rank. join: makes its communicator, called when rank 0 says so."""

    def __init__(self, executor: Executor, plan: Plan, link: Link, join: Callable[[], Communicator]) -> None:
        self._executor, self._plan, self._link, self._join = executor, plan, link, join
        self._communicator: Communicator | None = None
        self._late: Ticket | None = None

    def run(self) -> None:
        """Until `close` is asked for. An error is told to rank 0 and raised: the ranks are not in step any more. Raises EngineDead when rank 0 is gone."""
        while True:
            message = self._link.receive()
            try:
                value = self._do(message)
            except Exception as error:
                self._link.send(Said(None, f"{error}", type(error).__name__))
                raise
            if isinstance(message, Run) and message.step.late:
                continue  # Finish gives the answer to both
            self._link.send(Said(value))
            if isinstance(message, Ask) and message.what == "close":
                return

    def _do(self, message: Any) -> Any:
        match message:
            case Run():
                ticket = self._executor.submit(message.step)
                if message.step.late:
                    self._late = ticket
                    return None
                return checksum(self._executor.collect(ticket))
            case Finish():
                return self._finish(message)
            case Ask():
                return self._ask(message.what, message.args)
        raise PlatformError(f"a rank cannot do {type(message).__name__}")

    def _finish(self, message: Finish) -> int:
        ticket, self._late = self._late, None
        assert ticket is not None
        late = Late(message.mask, message.open, message.drop, self._processed if message.host_logits else None)
        self._executor.release(ticket, late)
        return checksum(self._executor.collect(ticket))

    def _processed(self, rows: np.ndarray) -> np.ndarray:
        """What rank 0's logits processors made of the same rows."""
        assert self._communicator is not None
        return np.asarray(self._communicator.broadcast(rows, 0))

    def _ask(self, what: str, args: dict[str, Any]) -> Any:
        executor = self._executor
        if what == "join":
            self._communicator = self._join()
            executor.connect(self._communicator)  # type: ignore[attr-defined]  # the feature "collectives"
        elif what == "load":
            executor.load(self._plan, _silent)
        elif what == "needs":
            return [(need.block_bytes, list(need.states)) for need in executor.kv_needs()]
        elif what == "allocate":
            groups = tuple(GroupPlan(need, blocks) for need, blocks in zip(executor.kv_needs(), args["blocks"], strict=True))
            executor.kv_allocate(KVPlan(groups, args["max_requests"], args["max_model_len"]))
        elif what == "warm_up":
            executor.warm_up(_silent)
        elif what == "control":
            given = args["args"]
            parts = {"parts": unpacked(given["parts"])} if "parts" in given else {}
            reply = without_memory(lambda: executor.control(Control(args["kind"], {**given, **parts})))
            return reply.ok, reply.error
        elif what == "close":
            executor.close()
            if self._communicator is not None:
                self._communicator.close()
        else:
            raise PlatformError(f"a rank cannot do {what!r}")
        return None


def _silent(what: str, fraction: float) -> None:
    """Rank 0 shows the progress."""

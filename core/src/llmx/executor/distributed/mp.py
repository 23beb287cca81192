"""MpExecutor: rank 0 in this process, the other ranks in processes of their own on this host; to the engine one executor.

Every rank gets every Step and draws every token; what they drew is compared after each step. A thread that sleeps in poll notices a rank that ends.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from llmx import errors
from llmx.batch import Step, StepOutput
from llmx.errors import EngineDead, LlmxError, PlatformError
from llmx.executor.adapters import LoraPart
from llmx.executor.base import Control, Executor, Late, Progress, Reply, Ticket
from llmx.executor.distributed.adapters import OUT_OF_MEMORY, cut_parts, packed, without_memory
from llmx.executor.distributed.serve import checksum
from llmx.executor.distributed.wire import Ask, Finish, Link, Run, Said, ToRank
from llmx.hooks.collectives import Communicator
from llmx.kv.spec import GroupNeed, GroupPlan, KVPlan
from llmx.program.passes.cuts import PartCut

if TYPE_CHECKING:
    from llmx.platform.plan import Plan

__all__ = ["MpExecutor", "RankProcess"]

_END_S = 5.0  # for a rank to end by itself
_SEEN_S = 2.0  # from an error in a step to the news that a rank has ended, where that is the reason
_BROADCAST = ("sleep", "wake")  # controls that every rank obeys
_OWN = ("stats",)

T = TypeVar("T")


@dataclass(slots=True)
class RankProcess:
    """A rank other than 0, seen from rank 0."""

    rank: int
    process: subprocess.Popen[bytes]
    link: Link

    def receive(self) -> Any:
        """The value of its next answer. Raises the error that it met, or EngineDead with its exit status when it is gone."""
        try:
            said: Said = self.link.receive()
        except EngineDead:
            raise EngineDead(self.death()) from None
        if said.error:
            kind = getattr(errors, said.kind, None)
            text = f"rank {self.rank}: {said.error}"
            raise kind(text) if isinstance(kind, type) and issubclass(kind, LlmxError) else EngineDead(f"{text} ({said.kind})")
        return said.value

    def death(self) -> str:
        """How it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_SEEN_S)
        status = self.process.returncode
        hint = " (SIGKILL: the kernel does that too, when memory runs out)" if status == -9 else ""
        return f"rank {self.rank} ended with status {status}{hint}"

    def end(self) -> None:
        """Wait for its end, or kill it. Idempotent."""
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_END_S)
        self.link.close()


class MpExecutor:
    """local: rank 0's own executor. shared_memory: the KV pages of all ranks come out of the same memory, so a block costs the sum of theirs.
    cuts: by rank what it has of each Part, for adapters.

    Raises EngineDead from every method when a rank has ended, with its number and exit status.
    """

    def __init__(
        self,
        local: Executor,
        others: Sequence[RankProcess],
        communicator: Communicator,
        *,
        shared_memory: bool,
        at_end: Callable[[], None] | None = None,
        cuts: Sequence[Mapping[str, PartCut]] = (),
    ) -> None:
        self._local, self._others, self._communicator = local, list(others), communicator
        self._shared_memory, self._at_end = shared_memory, at_end
        self._cuts, self.limits = cuts, local.limits
        self._closing = self._closed = False
        self._needs: list[GroupNeed] = []
        self._watch = threading.Thread(target=self._watch_ranks, name="llmx-ranks", daemon=True)
        self._watch.start()

    # -- ranks ---------------------------------------------------------------------------------------------------------

    def _watch_ranks(self) -> None:
        """Sleep until a connection hangs up; then nobody may wait for that rank."""
        poll = select.poll()
        for other in self._others:
            poll.register(other.link.fileno(), select.POLLHUP | select.POLLRDHUP)
        poll.poll()
        if not self._closing:
            self._communicator.abort()

    def _send(self, message: ToRank) -> None:
        for other in self._others:
            self._send_to(other, message)

    def _send_to(self, other: RankProcess, message: ToRank) -> None:
        try:
            other.link.send(message)
        except EngineDead:
            other.receive()  # what it said last, which is why
            raise

    def _together(self, run: Callable[[], T]) -> T:
        """Rank 0's part of something that all ranks do. When it fails because a rank is gone, the error says which."""
        try:
            return run()
        except Exception:
            end = monotonic() + _SEEN_S
            while monotonic() < end:
                gone = [other for other in self._others if self._hung_up(other)]
                for other in gone:
                    while True:  # answers to steps that went well may come first
                        other.receive()
                threading.Event().wait(0.02)
            raise

    def _hung_up(self, other: RankProcess) -> bool:
        poll = select.poll()
        poll.register(other.link.fileno(), select.POLLHUP | select.POLLRDHUP)
        return bool(poll.poll(0))

    def _ask(self, what: str, run: Callable[[], T], **args: Any) -> tuple[T, list[Any]]:
        self._send(Ask(what, args))
        own = self._together(run)
        return own, [other.receive() for other in self._others]

    # -- start ---------------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, progress: Progress) -> None:
        """Every rank loads its part."""
        self._ask("load", lambda: self._local.load(plan, progress))

    def kv_needs(self) -> list[GroupNeed]:
        """Groups of rank 0; a block has the bytes that it takes on all ranks, or on the largest where each has memory of its own.

        Raises PlatformError where ranks have other groups.
        """
        if not self._needs:
            own, theirs = self._ask("needs", self._local.kv_needs)
            sizes = [[need.block_bytes for need in own]]
            for other, groups in zip(self._others, theirs, strict=True):
                if [list(need.states) for need in own] != [states for _, states in groups]:
                    raise PlatformError(f"the KV groups of rank {other.rank} are not those of rank 0: take a tensor_parallel_size that divides the heads")
                sizes.append([size for size, _ in groups])
            total = sum if self._shared_memory else max
            self._needs = [replace(need, block_bytes=total(size)) for need, *size in zip(own, *sizes, strict=True)]
        return list(self._needs)

    def kv_allocate(self, plan: KVPlan) -> None:
        """As many blocks on each rank, of its own size."""
        own = [GroupPlan(need, group.num_blocks) for need, group in zip(self._local.kv_needs(), plan.groups, strict=True)]
        local = replace(plan, groups=tuple(own))
        blocks = [group.num_blocks for group in plan.groups]
        self._ask("allocate", lambda: self._local.kv_allocate(local), blocks=blocks, max_requests=plan.max_requests, max_model_len=plan.max_model_len)

    def warm_up(self, progress: Progress) -> None:
        """Every rank."""
        self._ask("warm_up", lambda: self._local.warm_up(progress))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def submit(self, step: Step) -> Ticket:
        """Every rank runs the step."""
        self._send(Run(step))
        return self._together(lambda: self._local.submit(step))

    def release(self, ticket: Ticket, late: Late) -> None:
        """Every rank samples under the masks; logits processors run here, and the others get what they made."""
        self._send(Finish(late.mask, late.open, late.drop, late.host_logits is not None))
        process = late.host_logits
        if process is not None:
            late = replace(late, host_logits=lambda rows: np.asarray(self._communicator.broadcast(np.ascontiguousarray(process(rows), np.float32), 0)))
        self._together(lambda: self._local.release(ticket, late))

    def collect(self, ticket: Ticket) -> StepOutput:
        """Rank 0's result. Raises EngineDead where another rank drew other tokens."""
        out = self._together(lambda: self._local.collect(ticket))
        mine = checksum(out)
        for other in self._others:
            if other.receive() != mine:
                raise EngineDead(f"rank {other.rank} drew other tokens than rank 0 in step {ticket.seq}: the ranks do not compute the same")
        return out

    # -- between steps -------------------------------------------------------------------------------------------------

    def control(self, cmd: Control) -> Reply:
        """sleep and wake go to every rank, of an adapter each gets its share, stats tells of rank 0; other controls are refused."""
        if cmd.kind in _OWN:
            reply = self._local.control(cmd)
            return replace(reply, value={**reply.value, "ranks": 1 + len(self._others)}) if reply.ok else reply
        if cmd.kind in ("lora_add", "lora_remove"):
            return self._adapter(cmd.kind, cmd.args["slot"], cmd.args.get("parts"))
        if cmd.kind not in _BROADCAST:
            return Reply(False, error=f"with tensor_parallel_size above 1 the control {cmd.kind!r} is not there: start with 1")
        own, theirs = self._ask("control", lambda: self._local.control(cmd), kind=cmd.kind, args=cmd.args)
        for other, (ok, error) in zip(self._others, theirs, strict=True):
            if ok != own.ok:
                raise EngineDead(f"{cmd.kind} on rank {other.rank}: {error or 'done'}, on rank 0: {own.error or 'done'}")
        return own

    def _adapter(self, kind: str, slot: int, parts: Mapping[str, LoraPart] | None) -> Reply:
        """Fill or empty a slot on every rank. Where one cannot fill it, all have it empty. Raises MemoryError before anything is sent."""
        given: list[dict[str, LoraPart] | None] = [None if parts is None else cut_parts(parts, cuts) for cuts in self._cuts]
        asked = [Ask("control", {"kind": kind, "args": {"slot": slot} if one is None else {"slot": slot, "parts": packed(one)}}) for one in given[1:]]
        told: list[RankProcess] = []
        own = {"slot": slot} if given[0] is None else {"slot": slot, "parts": given[0]}
        try:
            for other, message in zip(self._others, asked, strict=True):
                self._send_to(other, message)
                told.append(other)
            reply = self._together(lambda: without_memory(lambda: self._local.control(Control(kind, own))))
        except MemoryError:
            reply = OUT_OF_MEMORY
        replies = [(reply.ok, reply.error), *(tuple(other.receive()) for other in told)]
        bad = [f"rank {rank}: {error}" for rank, (ok, error) in enumerate(replies) if not ok]
        if bad and parts is not None:
            self._adapter("lora_remove", slot, None)
        return Reply(not bad, error="; ".join(bad))

    def check_slots(self, expected: dict[int, list[int]]) -> None:
        """As rank 0 has them (tests)."""
        self._local.check_slots(expected)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End every rank: politely, then not. Idempotent."""
        if self._closed:
            return
        self._closing = self._closed = True
        for other in self._others:
            with contextlib.suppress(EngineDead):
                other.link.send(Ask("close"))
        self._local.close()
        for other in self._others:
            other.end()
        self._communicator.close()
        if self._at_end is not None:
            self._at_end()

"""LateMasks: the token masks of late steps, filled on a thread while the forward runs, or before it where the forward needs all processors."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from llmx.engine.processors import host_logits
from llmx.executor.base import Late
from llmx.request import Request
from llmx.sched.scheduled import Scheduled
from llmx.structured.constraint import Constraint
from llmx.structured.grammar import Backend, Matcher, mask_words

__all__ = ["LateMasks"]

_Row = tuple[Request, list[int]]  # whose a sample row is, and the drafts before it
_Turn = tuple[int, Constraint, list[int]]  # a row, whose mask it gets, and the tokens that its matcher takes first


class LateMasks:
    """One engine's masks. `begin` before the forward where all tokens are known by then, `late` before sampling, in the order of the steps.

    busy: the forward uses every processor. A thread beside it would hold up one of its threads, and with it all of them, for longer than
    the masks take alone.
    """

    def __init__(self, vocab_size: int, *, busy: bool = False) -> None:
        self._words = mask_words(vocab_size)
        self._pool: ThreadPoolExecutor | None = None
        self._busy = busy
        self._begun: Future[Late] | None = None
        self._mask = np.empty((0, self._words), np.uint32)

    def begin(self, scheduled: Scheduled) -> None:
        """Start filling the masks of a late step whose requests have no token in flight; or fill them."""
        if self._busy:
            self._begun = Future()
            self._begun.set_result(self._fill(_rows(scheduled)))
            return
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="llmx-masks")
        self._begun = self._pool.submit(self._fill, _rows(scheduled))

    def late(self, scheduled: Scheduled) -> Late:
        """What the step's sampling waits for; rows of requests that have ended, or whose grammar failed, are dropped."""
        begun, self._begun = self._begun, None
        rows = _rows(scheduled)
        late = begun.result() if begun is not None else self._fill(rows)
        assert late.drop is not None
        late.host_logits = host_logits(rows)
        late.drop |= [request.finished for request, _ in rows]
        for request in scheduled.samples:
            if request.constraint is not None and request.constraint.done:
                request.constraint = None  # from now on its steps wait for nothing
        return late

    def close(self) -> None:
        """Stop the thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def _fill(self, rows: list[_Row]) -> Late:
        """The masks in as many rounds as a sample has rows: first what the answers may go on with, then what they may behind each draft."""
        if len(self._mask) < len(rows) or not self._busy:  # a busy executor has read the masks of the step before; new memory is paid for page by page
            self._mask = np.empty((len(rows), self._words), np.uint32)
        mask = self._mask[: len(rows)]
        opened, drop = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        ahead: dict[Request, Constraint | None] = {}
        for depth in range(1 + max((len(drafts) for _, drafts in rows), default=0)):
            shares: dict[int, tuple[Backend, list[_Turn]]] = {}
            for row, (request, drafts) in enumerate(rows):
                if len(drafts) != depth or request.constraint is None or request.constraint.open or request.finished:
                    continue
                turn = _behind(row, request, drafts, ahead) if drafts else (row, request.constraint, request.tokens[_known(request) :])
                opened[row], drop[row] = False, turn is None
                if turn is not None:
                    shares.setdefault(id(turn[1].backend), (turn[1].backend, []))[1].append(turn)
            for backend, share in shares.values():
                _fill_share(backend, share, mask, drop)
        return Late(mask=mask, open=opened, drop=drop)


def _known(request: Request) -> int:
    """How many of the request's tokens its matcher has seen or need not see."""
    return request.prompt_len + (request.constraint.taken if request.constraint is not None else 0)


def _behind(row: int, request: Request, drafts: list[int], ahead: dict[Request, Constraint | None]) -> _Turn | None:
    """What a row behind drafts takes part with, a round after the row before it; None: it cannot be known, and the row is dropped.

    ahead: constraints that look over drafts, by their answers; added to.
    """
    if request not in ahead and request.constraint is not None:
        try:
            ahead[request] = request.constraint.fork()
        except Exception:  # noqa: BLE001 - a foreign library may raise anything; the answer goes on without these drafts
            ahead[request] = None
    one = ahead[request]
    return None if one is None else (row, one, drafts[-1:])


def _matched(constraint: Constraint, new: list[int]) -> tuple[Matcher | None, list[int]]:
    """(the matcher that fills this row, the tokens it takes first); None inside reasoning. While it is not known whether the answer begins with
    reasoning, a matcher of its own looks what the grammar would allow."""
    gate = constraint.gate
    if gate is None:
        return constraint.matcher, new
    ours = gate.take(new)
    if gate.undecided and constraint.compiled is not None:
        return constraint.compiled.matcher(), gate.held
    return (constraint.matcher if gate.over else None), ours


def _reason(constraint: Constraint, matcher: Matcher | None, row: np.ndarray) -> None:
    """Write what reasoning allows into a mask row (u32 [words], changed in place)."""
    gate = constraint.gate
    if gate is None or gate.over:
        return
    if matcher is None:
        gate.inside_mask(row)
        return
    if matcher.error is not None:  # begun like the start marker, and nothing that the grammar takes
        row[:] = 0
    gate.open_start(row)


def _rows(scheduled: Scheduled) -> list[_Row]:
    """Whose each sample row of the step is, and the drafts before it."""
    step, rows = scheduled.step, []
    for request, (_, first, count) in zip(scheduled.samples, step.samples.tolist(), strict=True):
        drafts = step.tokens[step.head[first + 1 : first + count]].tolist() if count > 1 else []
        rows += [(request, drafts[:at]) for at in range(count)]
    return rows


def _fill_share(backend: Backend, share: list[_Turn], mask: np.ndarray, drop: np.ndarray) -> None:
    try:
        given = [_matched(constraint, new) for _, constraint, new in share]
        live = [(matcher, ours, row) for (matcher, ours), (row, _, _) in zip(given, share, strict=True) if matcher is not None]
        backend.fill([one[0] for one in live], [one[1] for one in live], [one[2] for one in live], mask)
        for (row, constraint, _), (matcher, _) in zip(share, given, strict=True):
            _reason(constraint, matcher, mask[row])
    except Exception as error:  # noqa: BLE001 - a foreign library may raise anything; the engine and the others must live
        for _, constraint, _ in share:
            constraint.error = f"the grammar backend {backend.name!r} failed: {type(error).__name__}: {error}"
    for row, constraint, new in share:
        constraint.taken += len(new)
        if constraint.matcher.error is not None and constraint.error is None:
            constraint.error = f"the grammar cannot go on: {constraint.matcher.error}"
        if constraint.error is not None:
            drop[row] = True
        elif constraint.taken < constraint.min_tokens:
            constraint.without_stops(mask[row])

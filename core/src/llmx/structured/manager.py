"""Grammars: compiles the grammars of requests on threads, keeps them, and picks a backend that can honour each.

The tokenizer's bytes are read, and backends built, when the first grammar comes. Nothing here runs while a step does, but for
threads that hold the GIL for moments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic

from llmx.errors import GrammarError
from llmx.record import record
from llmx.structured.free import Free
from llmx.structured.grammar import Backend, Compiled, GrammarSpec, TokenTable
from llmx.structured.reasoning import MarkerTokens
from llmx.structured.spec_from import spec_from
from llmx.structured_params import ReasoningSpan, StructuredOutputsParams

__all__ = ["CACHED", "Grammars", "Pending", "ReadyGrammar"]

CACHED = 256  # compiled grammars that are kept
_THREADS = 2
_LOOK_S = 0.1  # how often a waiting caller looks at the time


@record
class ReadyGrammar:
    """A compiled grammar and the backend whose it is."""

    backend: Backend
    compiled: Compiled


@dataclass(slots=True)
class Pending:
    """A grammar on its way. began: when compiling itself began (monotonic); 0.0 while it waits for a thread or for what all grammars need."""

    future: Future[ReadyGrammar] = field(default_factory=Future)
    began: float = 0.0

    def overdue(self, timeout_s: float) -> bool:
        """True when it has been compiled for longer than that and is not ready."""
        return not self.future.done() and self.began > 0.0 and monotonic() > self.began + timeout_s


class Grammars:
    """The grammars of one engine. The engine's thread calls it; compiling happens on others.

    makers: (name, what makes the backend of a TokenTable), in the order of preference. table: reads the vocabulary. supports: by name, asked
    before a backend is made: why it cannot honour a spec, or None.
    """

    def __init__(
        self, makers: Sequence[tuple[str, Callable[[TokenTable], Backend]]], table: Callable[[], TokenTable],
        *, timeout_s: float = 10.0, kept: int = CACHED, supports: Mapping[str, Callable[[GrammarSpec], str | None]] | None = None,
    ) -> None:  # fmt: skip
        self.timeout_s = timeout_s
        self._makers = tuple(makers)
        self._read_table = table
        self._kept = kept
        self._supports = supports or {}
        self._making = {name: Lock() for name, _ in self._makers}
        self._cache: OrderedDict[tuple[str, GrammarSpec], ReadyGrammar] = OrderedDict()
        self._pending: dict[StructuredOutputsParams, Pending] = {}
        self._markers: dict[tuple[str, str], MarkerTokens] = {}
        self._lock = Lock()
        self._table: TokenTable | None = None
        self._backends: dict[str, Backend] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._free = ReadyGrammar(Free(), Free())
        self.compiled = 0  # grammars compiled so far
        self.hits = 0  # grammars found in the cache

    @property
    def names(self) -> tuple[str, ...]:
        """The backends, in the order of preference."""
        return tuple(name for name, _ in self._makers)

    def submit(self, params: StructuredOutputsParams) -> Pending:
        """The grammar, ready sooner or later; equal requests share the work. Its exception is a GrammarError."""
        if not self._makers and params.form:
            why = "no structured-output backend is installed: pip install llmx-llguidance"
            raise GrammarError(f"{params.field_name}: {why}", field=params.field_name)
        found = self._pending.get(params)
        if found is None or found.future.done():
            self._pool = self._pool or ThreadPoolExecutor(_THREADS, thread_name_prefix="llmx-grammar")
            found = Pending()
            found.future = self._pool.submit(self._compile, params, found)
            self._pending = {key: pending for key, pending in self._pending.items() if not pending.future.done()}
            self._pending[params] = found
        return found

    def get(self, params: StructuredOutputsParams) -> ReadyGrammar:
        """The grammar; waits for it. Raises GrammarError, also when it takes too long."""
        pending = self.submit(params)
        while not pending.overdue(self.timeout_s):
            try:
                return pending.future.result(min(self.timeout_s, _LOOK_S))
            except TimeoutError:
                continue
        raise self.too_slow(params)

    def markers(self, span: ReasoningSpan) -> MarkerTokens:
        """What the vocabulary has to do with a span's markers; made with the first grammar behind such reasoning."""
        with self._lock:
            key = (span.start, span.end)
            if key not in self._markers:
                self._markers[key] = MarkerTokens(span, self._tokens().tokens)
            return self._markers[key]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token id; the first call reads the vocabulary."""
        with self._lock:
            return self._tokens().tokens[token]

    def too_slow(self, params: StructuredOutputsParams) -> GrammarError:
        """The error of a grammar that was not ready in time."""
        why = f"compiling took longer than {self.timeout_s:g} s (--grammar-timeout): make the grammar or schema smaller"
        return GrammarError(f"{params.field_name}: {why}", field=params.field_name)

    def close(self) -> None:
        """Stop the threads; what they are compiling is forgotten."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # -- on a compile thread -------------------------------------------------------------------------------------------

    def _compile(self, params: StructuredOutputsParams, pending: Pending) -> ReadyGrammar:
        if params.after is not None:
            self.markers(params.after)  # here, not on the engine's thread
        if not params.form:
            return self._free
        spec = spec_from(params)
        with self._lock:
            key = (self._tokens().digest, spec)
            ready = self._cache.get(key)
            if ready is not None:
                self._cache.move_to_end(key)
                self.hits += 1
                return ready
        try:
            ready = self._first_that_can(spec, pending)
        except GrammarError as error:
            raise GrammarError(f"{params.field_name}: {error}", field=params.field_name) from error
        with self._lock:
            self.compiled += 1
            self._cache[key] = ready
            while len(self._cache) > self._kept:
                self._cache.popitem(last=False)
        return ready

    def _tokens(self) -> TokenTable:
        if self._table is None:
            self._table = self._read_table()
        return self._table

    def _first_that_can(self, spec: GrammarSpec, pending: Pending) -> ReadyGrammar:
        """Raises the first backend's GrammarError, with the others' reasons behind it, when none can."""
        reasons = []
        for name, make in self._makers:
            try:
                why = self._supports[name](spec) if name in self._supports else None
                if why is None:
                    backend = self._backend(name, make)
                    pending.began = monotonic()
                    return ReadyGrammar(backend, backend.compile(spec))
            except GrammarError as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - a foreign library may raise anything; only this request may suffer
                why = f"it failed: {type(error).__name__}: {error}"
            reasons.append((name, why))
        others = "".join(f"; {name}: {why}" for name, why in reasons[1:])
        raise GrammarError(f"{reasons[0][1]}{others}")

    def _backend(self, name: str, make: Callable[[TokenTable], Backend]) -> Backend:
        """The backend, made once. It may import much: those who want another one do not wait for it."""
        with self._making[name]:
            if name not in self._backends:
                self._backends[name] = make(self._tokens())
            return self._backends[name]

"""CompileRoom: requests whose grammar is being compiled, while the engine serves the others."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait

from llmx.engine.messages import Abort, Add, SeqOutput
from llmx.errors import RequestError
from llmx.structured.manager import Grammars, Pending, ReadyGrammar

__all__ = ["CompileRoom"]

_PAUSE_S = 0.005  # how long an idle engine waits for a grammar before it looks for messages


class CompileRoom:
    """Holds each Add until its grammar is ready, has failed, or took too long."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._held: dict[str, tuple[Add, Pending]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, message: Add) -> bool:
        """True when the request has a grammar, and so waits here. Raises RequestError when it cannot be compiled at all."""
        wanted = message.params.structured_outputs
        if wanted is None or self._grammars is None:
            return False
        if message.id in self._held:
            raise RequestError(f"a request with id {message.id!r} is running already", field="request_id")
        self._held[message.id] = (message, self._grammars.submit(wanted))
        return True

    def drop(self, message: Abort) -> list[SeqOutput]:
        """Forget a request that was aborted: its ends, or [] when it is not here. The compile goes on for whoever asks next."""
        held = self._held.get(message.id)
        if held is None or message.index >= 0:  # no answer has begun: a single one cannot have been stopped
            return []
        del self._held[message.id]
        return [SeqOutput(message.id, index, [], finish_reason=message.reason) for index in range(held[0].params.n)]

    def ready(self, *, idle: bool) -> list[tuple[Add, ReadyGrammar | RequestError]]:
        """Requests that wait no longer, each with its grammar or why it is refused. idle: nothing else runs, so wait a moment for one."""
        if idle and self._held:
            wait([pending.future for _, pending in self._held.values()], _PAUSE_S, FIRST_COMPLETED)
        done: list[tuple[Add, ReadyGrammar | RequestError]] = []
        for message, pending in self._held.values():
            if pending.future.done():
                done.append((message, _outcome(message, pending.future)))
            elif self._grammars is not None and message.params.structured_outputs is not None and pending.overdue(self._grammars.timeout_s):
                done.append((message, self._grammars.too_slow(message.params.structured_outputs)))
        for message, _ in done:
            del self._held[message.id]
        return done


def _outcome(message: Add, future: Future[ReadyGrammar]) -> ReadyGrammar | RequestError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, RequestError):
        return error
    field = message.params.structured_outputs.field_name if message.params.structured_outputs else None
    return RequestError(f"the grammar could not be compiled: {type(error).__name__}: {error}", field=field)

"""The engine process: `python -m llmx.engine.process REQUESTS OUTPUTS PARENT MAIN` with two ZMQ addresses.

It connects, reads what to start (Configure) from its standard input, starts the engine, then turns: take what has come, step, send the news. Idle, it sleeps in
poll. It ends on Shutdown, or when its parent is gone. No other thread computes here.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback

import zmq

from llmx.engine.compiling import CompileRoom
from llmx.engine.engine import Engine
from llmx.engine.messages import (
    Abort,
    Add,
    Configure,
    Control,
    Failed,
    FromEngine,
    GetStats,
    Outputs,
    Progress,
    Ready,
    Rejected,
    SeqOutput,
    Shutdown,
    Stats,
    ToEngine,
    decoder,
    encode,
)
from llmx.engine.parent import Parent
from llmx.errors import LlmxError, PlatformError, QueueFull, RequestError, RequestFailed
from llmx.executor.base import Progress as OnProgress
from llmx.structured.manager import ReadyGrammar

__all__ = ["main"]

_IDLE_POLL_MS = 1000  # how often an idle engine looks whether its parent lives


class _Channel:
    """The two sockets, typed."""

    def __init__(self, requests: str, outputs: str, parent: Parent) -> None:
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._in.set_hwm(0)
        self._in.connect(requests)
        self._out = self._context.socket(zmq.PUSH)
        self._out.set_hwm(0)
        self._out.connect(outputs)
        self._decoder = decoder(ToEngine)
        self._parent = parent

    def send(self, message: FromEngine) -> None:
        self._out.send(encode(message))

    def receive(self, *, wait: bool) -> ToEngine | None:
        """The next message; None when there is none now (wait: within the idle poll). Exits when the parent is gone."""
        self._parent.check()
        if wait and not self._in.poll(_IDLE_POLL_MS):
            return None
        try:
            return self._decoder.decode(self._in.recv(zmq.NOBLOCK))  # type: ignore[no-any-return]
        except zmq.Again:
            return None

    def close(self) -> None:
        self._in.close(linger=0)
        self._out.close(linger=1000)
        self._context.term()


def main(arguments: list[str]) -> int:
    """Run one engine until Shutdown; the exit status."""
    gc.disable()  # until the engine is there: what a start makes stays, and looking through it again and again takes a tenth of the start
    for group_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they reach the whole group; the parent drains and says Shutdown
        signal.signal(group_signal, signal.SIG_IGN)
    requests, outputs, *parent = arguments
    channel = _Channel(requests, outputs, Parent(*parent))
    try:
        engine = _start(channel)
        if engine is None:
            return 1
        _serve(engine, channel)
        engine.close()
        return 0
    except Exception as error:  # noqa: BLE001 - process border: the parent must learn why
        channel.send(Failed("", f"{type(error).__name__}: {error}", traceback.format_exc()))
        return 1
    finally:
        channel.close()


def _start(channel: _Channel) -> Engine | None:
    from llmx.engine.start import start_engine  # after the connection: the parent sees at once that the process lives

    text = sys.stdin.buffer.read()
    if not text:
        return None  # the parent ended before it said what to start
    message = decoder(Configure).decode(text)
    try:
        engine, info = start_engine(message.config, _progress_to(channel), message.user_set, channel.send)
    except LlmxError as error:
        channel.send(Failed(type(error).__name__, str(error), traceback.format_exc()))
        return None
    except MemoryError:
        why = "memory ran out while the model was loaded: lower --kv-cache-memory-bytes or --max-num-seqs, or take a smaller model"
        channel.send(Failed(PlatformError.__name__, why, traceback.format_exc()))
        return None
    gc.enable()
    gc.collect()
    gc.freeze()  # what the start made stays: later collections need not look at it
    channel.send(Ready(info))
    return engine


def _progress_to(channel: _Channel) -> OnProgress:
    """What loading calls for every tensor; the parent, which imports the server now, hears every twentieth part."""
    last = ("", -1)

    def report(what: str, fraction: float) -> None:
        nonlocal last
        if (now := (what, int(fraction * 20))) != last:
            last = now
            channel.send(Progress(what, fraction))

    return report


def _serve(engine: Engine, channel: _Channel) -> None:
    room = CompileRoom(engine.grammars)
    while True:
        wait = not (engine.has_work or room)
        while (message := channel.receive(wait=wait)) is not None:
            if isinstance(message, Shutdown):
                return
            _handle(message, engine, channel, room)
            wait = False  # in a pause the others wait still, and their time may be over
        for add, outcome in room.ready(idle=not engine.has_work):
            _add(add, engine, channel, outcome)
        if engine.has_work:
            items = engine.step()
            if items:
                channel.send(Outputs(items))
        for name, late in engine.expire():
            channel.send(_refusal(name, late))


def _add(message: Add, engine: Engine, channel: _Channel, outcome: ReadyGrammar | RequestError | None = None, room: CompileRoom | None = None) -> None:
    """Add a request, or hold it while its grammar is compiled, or say why not."""
    try:
        if isinstance(outcome, RequestError):
            raise outcome
        if room is None or not room.hold(message):
            engine.add(message, outcome)
    except RequestError as error:
        channel.send(_refusal(message.id, error))
    except Exception as error:  # noqa: BLE001 - an error before anything runs is this request's alone
        traceback.print_exc()
        channel.send(_refusal(message.id, RequestFailed(f"the engine could not take the request: {type(error).__name__}: {error}")))


def _handle(message: ToEngine, engine: Engine, channel: _Channel, room: CompileRoom) -> None:
    match message:
        case Add():
            _add(message, engine, channel, room=room)
        case Abort():
            ended: list[SeqOutput] = room.drop(message) or engine.abort(message)
            if ended:
                channel.send(Outputs(ended))
        case GetStats():
            channel.send(Stats(message.token, engine.stats(kv_map=message.kv_map)))
        case Control():
            channel.send(engine.controls.answer(message))


def _refusal(name: str, error: RequestError) -> Rejected:
    retry = error.retry_after_s if isinstance(error, QueueFull) else 1
    return Rejected(name, type(error).__name__, str(error), error.field, retry)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

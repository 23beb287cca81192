"""Profile: what one engine process does, step by step and function by function, written as two files.

NAME.trace.json is a trace of Chrome's format, which https://ui.perfetto.dev opens: a slice for each step with its rows and tokens, and inside it what
was scheduled, submitted, collected and taken in. NAME.prof has the Python functions, for `python -m pstats`. No text of any request is written.
"""

from __future__ import annotations

import cProfile
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["Profile"]

_MAX_EVENTS = 1_000_000  # about 200 MB of memory; what comes later is not recorded


class Profile:
    """Of one engine, from `start` to `stop`. folder: of the files; made when it is not there. Raises OSError when it cannot be written.

    While it runs, methods of the engine's parts are wrapped: an engine that is not profiled does nothing for it.
    """

    def __init__(self, engine: Engine, folder: str) -> None:
        self._engine = engine
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() // 10**6 % 1000:03d}"
        self._trace, self._functions = (Path(folder) / f"engine-{stamp}-{os.getpid()}{end}" for end in (".trace.json", ".prof"))
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._trace.touch()  # now, not when all is recorded
        self._events: list[dict[str, Any]] = []
        self._steps = 0
        self._began = time.perf_counter_ns()
        self._wrapped: list[tuple[Any, str]] = []
        self._profiler = cProfile.Profile()

    def start(self) -> None:
        """Begin to record."""
        engine = self._engine
        self._wrap(engine, "step", lambda result, given: None)
        self._wrap(engine, "add", lambda result, given: {"request": given[0].id, "prompt_tokens": len(given[0].prompt)})
        self._wrap(engine, "abort", lambda result, given: {"request": given[0].id, "reason": given[0].reason})
        self._wrap(engine.scheduler, "schedule", lambda result, given: self._shape(result))
        self._wrap(engine.executor, "submit", lambda result, given: {"step": given[0].seq})
        self._wrap(engine.executor, "collect", lambda result, given: dict(zip(("forward_us", "sample_us", "draft_us"), result.t_us, strict=True)))
        self._wrap(engine.scheduler, "update", lambda result, given: {"answers_with_news": len(result)})
        self._profiler.enable()

    def stop(self) -> dict[str, Any]:
        """Write the files: {"files": their paths, "steps": recorded}. Raises OSError."""
        self._profiler.disable()
        for owner, name in self._wrapped:
            delattr(owner, name)
        meta = [{"name": "process_name", "ph": "M", "pid": os.getpid(), "tid": 0, "args": {"name": f"llmx engine {os.getpid()}"}}]
        self._trace.write_bytes(msgspec.json.encode({"traceEvents": [*meta, *self._events], "displayTimeUnit": "ms"}))
        self._profiler.dump_stats(self._functions)
        return {"files": [str(self._trace.resolve()), str(self._functions.resolve())], "steps": self._steps}

    def _shape(self, scheduled: Any) -> dict[str, Any] | None:
        """What a step brings."""
        if scheduled is None:
            return None
        self._steps += 1
        tokens, prompt = scheduled.step.num_tokens, scheduled.num_prefill
        counts = {"rows": len(scheduled.rows), "tokens": tokens, "prompt_tokens": prompt, "samples": len(scheduled.samples)}
        return {"step": scheduled.step.seq, **counts, "waiting": len(self._engine.scheduler.waiting)}

    def _wrap(self, owner: Any, name: str, facts: Callable[[Any, tuple[Any, ...]], dict[str, Any] | None]) -> None:
        """Record each call of a method; facts: from its result and arguments, for whoever clicks at its slice."""
        call = getattr(owner, name)

        def recorded(*given: Any, **named: Any) -> Any:
            began = time.perf_counter_ns()
            result = call(*given, **named)
            ended = time.perf_counter_ns()
            if len(self._events) < _MAX_EVENTS:
                event = {"name": name, "ph": "X", "pid": os.getpid(), "tid": 0, "ts": (began - self._began) / 1000, "dur": (ended - began) / 1000}
                told = facts(result, given)
                self._events.append(event if told is None else {**event, "args": told})
            return result

        setattr(owner, name, recorded)
        self._wrapped.append((owner, name))

"""Logits processors of plugins: found by name when a request asks for them, and called for the rows of their own answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pluggy

from llmx.config import EngineConfig
from llmx.errors import PluginError, RequestError, RequestFailed
from llmx.executor.base import Limits
from llmx.hooks.loader import load_target
from llmx.hooks.types import LogitsModel, LogitsProcessor, LogitsProcessorDef
from llmx.request import Request
from llmx.sample.processing import Processing
from llmx.sampling_params import LogitsProcessorParams, SamplingParams
from llmx.structured.constraint import Constraint
from llmx.structured.free import Free

__all__ = ["Processors", "host_logits", "processors_from"]

_FIELD = "logits_processors"


def processors_from(manager: pluggy.PluginManager, config: EngineConfig, model: LogitsModel) -> Processors:
    """The processors of all plugins. Raises PluginError when two have one name."""
    found: dict[str, LogitsProcessorDef] = {}
    for one in (one for listed in manager.hook.llmx_logits_processors(config=config) for one in listed):
        if one.name in found:
            both = f"{found[one.name].target} and {one.target}"
            plugin = one.target.partition(":")[0].partition(".")[0]
            raise PluginError(f"the logits processor {one.name!r} comes twice, as {both}: leave one plugin out (--deny-plugin)", plugin=plugin)
        found[one.name] = one
    return Processors(found, model)


class Processors:
    """What an engine's plugins offer, by name; imported when a request names it."""

    def __init__(self, defs: dict[str, LogitsProcessorDef] | None = None, model: LogitsModel | None = None) -> None:
        self._defs, self._model = defs or {}, model

    def put(self, params: SamplingParams, constraints: Sequence[Constraint | None], limits: Limits) -> list[Constraint | None]:
        """The constraints of a request's answers with the processors that it names. Raises RequestError for what is not there or not taken."""
        if not params.logits_processors:
            return [*constraints]
        if not {"late_mask", "host_logits"} <= limits.features:
            why = "this platform gives no logits to the host (its executor lacks the feature host_logits): leave it out, or use another platform"
            raise RequestError(f"{_FIELD}: {why}", field=_FIELD)
        put: list[Constraint | None] = []
        for one in constraints:
            one = one or Constraint(Free(), Free(), free=True)
            one.processing = Processing([(wanted.name, self._make(wanted)) for wanted in params.logits_processors])
            put.append(one)
        return put

    def _make(self, wanted: LogitsProcessorParams) -> LogitsProcessor:
        found = self._defs.get(wanted.name)
        if found is None:
            there = ", ".join(sorted(self._defs)) or "none: a plugin brings them (docs/hooks.md, llmx_logits_processors)"
            raise RequestError(f"{_FIELD} names {wanted.name[:80]!r}, which no plugin has; there are {there}", field=_FIELD)
        try:
            made: LogitsProcessor = load_target(found.target)(dict(wanted.args), self._model)
        except (ValueError, TypeError, KeyError, RequestError) as error:
            raise RequestError(f"{_FIELD}: {wanted.name!r} does not take {dict(wanted.args)!r:.200}: {error}", field=_FIELD) from error
        except Exception as error:  # a plugin may raise anything; only this request may suffer
            raise RequestFailed(f"the logits processor {wanted.name!r} could not be made: {type(error).__name__}: {error}") from error
        return made


def host_logits(rows: Sequence[tuple[Request, list[int]]]) -> Callable[[np.ndarray], np.ndarray] | None:
    """What a late step's logits go through on their way to sampling; None where no answer in it has processors.

    rows: whose each sample row is, and the drafts before it.
    """
    wanted = [
        (row, one, drafts, one.constraint)
        for row, (one, drafts) in enumerate(rows)
        if one.constraint is not None and one.constraint.processing and not one.finished
    ]
    if not wanted:
        return None

    def run(logits: np.ndarray) -> np.ndarray:
        for row, request, drafts, constraint in wanted:
            assert constraint.processing is not None
            logits[row] = constraint.processing.run(request.tokens, request.prompt_len, logits[row].copy(), drafts)
            constraint.error = constraint.error or constraint.processing.error
        return logits

    return run

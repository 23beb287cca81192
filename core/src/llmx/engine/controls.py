"""Controls: what an administrator asks of a living engine, done between two of its steps."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llmx.engine.messages import Control, Controlled
from llmx.engine.prefix_reset import forget_prefixes, reset_prefix_cache
from llmx.engine.profile import Profile
from llmx.errors import Conflict, RequestError, RequestFailed

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["Controls"]


class Controls:
    """Of one engine. paused: no step starts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._profile: Profile | None = None
        self._held = False

    @property
    def paused(self) -> bool:
        """True when no step may start: also once those have ended who were there when `pause wait` came."""
        last = self._engine.scheduler.admission.last_arrival
        return self._held or (last is not None and not any(arrival <= last for arrival in self._arrivals()))

    def _arrivals(self) -> Iterator[int]:
        scheduler = self._engine.scheduler
        return (one.arrival for requests in (scheduler.running, scheduler.waiting) for one in requests)

    def answer(self, message: Control) -> Controlled:
        """Do what the message asks. Nothing raises: the answer tells."""
        try:
            return Controlled(message.token, self._do(message.what, message.argument))
        except RequestError as error:
            return Controlled(message.token, error=str(error), kind=type(error).__name__, field=error.field)
        except OSError as error:
            return Controlled(message.token, error=f"{message.what}: {error}", kind=RequestFailed.__name__)
        except Exception as error:  # noqa: BLE001 - between two steps nothing runs that it could have broken: the engine lives on
            traceback.print_exc()
            return Controlled(message.token, error=f"{message.what}: {type(error).__name__}: {error}", kind=RequestFailed.__name__)

    def _do(self, what: str, argument: str) -> dict[str, Any]:
        match what:
            case "pause":
                self._pause(finish=argument == "wait")
                return {"paused": self.paused}
            case "resume":
                self._held, self._engine.scheduler.admission.last_arrival = False, None
            case "reset_prefix_cache":
                if argument == "running":
                    reset_prefix_cache(self._engine, reset_running_requests=True)
                return forget_prefixes(self._engine)
            case "start_profile":
                if self._profile is not None:
                    raise Conflict("a profile is being recorded already: POST /stop_profile ends it")
                self._profile = Profile(self._engine, argument)
                self._profile.start()
            case "stop_profile":
                return self._stop_profile()
            case "load_lora" | "unload_lora" | "pin_lora" | "resolve_lora":
                return self._adapters(what, **json.loads(argument))
        return {}

    def _adapters(self, what: str, name: str, **options: Any) -> dict[str, Any]:
        adapters, running = self._engine.adapters, self._engine.scheduler.running
        if what == "load_lora":
            return adapters.load(name, options.pop("path"), running, **options)
        if what == "pin_lora":
            return adapters.pin(name, running)
        if what == "resolve_lora":
            return adapters.resolve(name, running)
        adapters.unload(name, running)
        return {}

    def _pause(self, *, finish: bool) -> None:
        admission = self._engine.scheduler.admission
        if not finish:
            self._held = True
        elif admission.last_arrival is None:
            admission.last_arrival = max(self._arrivals(), default=0)

    def _stop_profile(self) -> dict[str, Any]:
        if self._profile is None:
            raise Conflict("no profile is being recorded: POST /start_profile begins one")
        profile, self._profile = self._profile, None
        return profile.stop()

    def close(self) -> None:
        """The engine ends: a profile that is being recorded is written."""
        if self._profile is not None:
            self._profile.stop()

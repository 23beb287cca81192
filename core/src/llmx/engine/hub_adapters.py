"""LoRA adapters by their names on the hub: those that --lora-hub allows, fetched when a request first names one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from llmx.config import EngineConfig
from llmx.engine.model_fetch import hub_of
from llmx.errors import ConfigError, ModelError, ModelNotFound, RequestError
from llmx.lora.settings import read_settings
from llmx.weights.hub_errors import NotOnHub
from llmx.weights.hub_name import HubName, parse_hub_name

if TYPE_CHECKING:
    from llmx.engine.steering import Steering

__all__ = ["HubAdapters", "HubUnavailable", "adapter_folder", "allowed_name"]

_log = logging.getLogger("llmx.lora")
_THREADS = 2  # downloads at a time
_ABSENT_S = 60.0  # for so long a name that the hub does not have is not asked for again
_MOST_ABSENT = 1000  # names


class HubUnavailable(RequestError):
    """An adapter cannot be fetched now: the hub does not answer, the disk is full, or connections are forbidden."""

    status = 503


def allowed_name(config: EngineConfig, name: str) -> HubName | None:
    """What `name` (ORG/NAME or ORG/NAME@REVISION) means on the hub; None where --lora-hub does not allow it."""
    try:
        found = parse_hub_name(name) if config.lora.hub else None
    except ConfigError:
        return None
    allowed = found is not None and found.quant is None and any(fnmatchcase(found.repo, pattern) for pattern in config.lora.hub)
    return found if allowed else None


def adapter_folder(config: EngineConfig, name: str) -> str | None:
    """Folder of the adapter `name`, fetched where it is not here; None where --lora-hub does not allow it.

    A connection is made only for names that are allowed and not in the cache. Raises ModelNotFound where the hub has no such adapter, HubUnavailable where
    it cannot be fetched, RequestError where its settings cannot be served; all with what went wrong.
    """
    found = allowed_name(config, name)
    if found is None:
        return None
    try:
        return hub_of(config.model).ensure_adapter(found, _checked(name, config.lora.max_rank))
    except NotOnHub as error:
        raise ModelNotFound(f"adapter {name[:60]!r}: {error}", field="model") from error
    except (ModelError, OSError) as error:
        raise HubUnavailable(f"adapter {name[:60]!r}: {error}", field="model") from error


def _checked(name: str, max_rank: int) -> Callable[[Path], None]:
    """Looks at the settings in a folder before the weights are fetched. It raises RequestError."""

    def check(folder: Path) -> None:
        try:
            settings = read_settings(folder)
        except ModelError as error:
            raise RequestError(f"adapter {name[:60]!r}: {str(error).replace(f'{folder}/', '')}", field="model") from error
        if settings.rank > max_rank and not settings.ranks:
            why = f"its rank is {settings.rank}, but --max-lora-rank is {max_rank}: start with a larger one"
            raise RequestError(f"adapter {name[:60]!r}: {why}", field="model")

    return check


class HubAdapters:
    """The fetches of one engine that others use: each name once, on threads of their own, so that others are served meanwhile."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="llmx-hub-adapter")
        self._loads: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._absent: dict[str, float] = {}  # name -> when it may be asked for again

    async def load(self, steering: Steering, name: str) -> dict[str, Any] | None:
        """The facts about an adapter that the hub has, loaded now; None where --lora-hub does not allow it.

        Raises ModelNotFound, HubUnavailable and RequestError with texts for clients; the log has the details.
        """
        if allowed_name(self._config, name) is None:
            return None
        if self._absent.get(name, 0.0) > monotonic():
            raise _not_found(name)
        task = self._loads.get(name)
        if task is None:
            task = self._loads[name] = asyncio.create_task(self._load(steering, name))
            task.add_done_callback(lambda done: self._ended(name, done))
        return await asyncio.shield(task)  # a client that leaves does not stop it for the others

    def _ended(self, name: str, task: asyncio.Task[dict[str, Any]]) -> None:
        del self._loads[name]
        if not task.cancelled():
            task.exception()  # seen, also where all clients have left

    async def _load(self, steering: Steering, name: str) -> dict[str, Any]:
        try:
            path = await asyncio.get_running_loop().run_in_executor(self._threads, adapter_folder, self._config, name)
        except ModelNotFound as error:
            _log.warning("%s", error)
            if len(self._absent) >= _MOST_ABSENT:
                self._absent.pop(next(iter(self._absent)))
            self._absent[name] = monotonic() + _ABSENT_S
            raise _not_found(name) from error
        except HubUnavailable as error:
            _log.error("%s", error)
            raise HubUnavailable(f"adapter {name[:60]!r} cannot be fetched from the hub now: try again later", field="model") from error
        assert path is not None
        return await steering.load_adapter(name, path)


def _not_found(name: str) -> ModelNotFound:
    return ModelNotFound(f"there is no LoRA adapter {name[:60]!r} on the hub that this server may read: check the name", field="model")

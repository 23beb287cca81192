"""ServedModels: the models of one server, found by the name that a request brings."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request

from llmx.config import EngineConfig
from llmx.engine.find_adapter import find_adapter, may_have
from llmx.errors import ConfigError, EngineDead, LlmxError, ModelNotFound, RequestError, some_names
from llmx.resolve import check_names
from llmx_server.body import read_body, shorten
from llmx_server.errors import ModelAsleep
from llmx_server.metrics import Metrics
from llmx_server.serving import Host, Residence, Serving

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine
    from llmx.engine.messages import Control

__all__ = ["ServedModels", "models_of", "open_body"]


_log = logging.getLogger("llmx.server")


class _NamesModel(Protocol):
    model: str | None


B = TypeVar("B", bound=BaseModel)


class ServedModels:
    """Servings in the order in which they were named; the first is the default. Each has an engine process of its own."""

    def __init__(self, servings: Sequence[Serving], host: Host) -> None:
        self._servings = list(servings)
        self.host = host
        self._rousing: dict[int, asyncio.Task[None]] = {}  # by id of the Serving
        self._starting: dict[int, AsyncEngine] = {}  # by id
        self.make_engine: Callable[[dict[str, Any]], AsyncEngine] | None = None  # from one model's options; None: no other can be loaded

    def __iter__(self) -> Iterator[Serving]:
        return iter(self._servings)

    def __len__(self) -> int:
        return len(self._servings)

    @property
    def default(self) -> Serving:
        """What answers a request that names no model."""
        return self._servings[0]

    @property
    def config(self) -> EngineConfig:
        """The settings of the server: those of the first model."""
        return self.default.config

    @property
    def names(self) -> list[str]:
        """All names under which a model is served."""
        return [name for serving in self for name in serving.model_names]

    @property
    def adapter_names(self) -> list[str]:
        """All names of LoRA adapters."""
        return [name for serving in self for name in serving.adapters]

    def find(self, name: str | None) -> Serving:
        """The model of a name, or that of an adapter's name; none means the default. Raises ModelNotFound."""
        found = self.default if not name else next((serving for serving in self if name in serving.model_names), None)
        if found is None:
            base = next((serving for serving in self if serving.residence != "asleep" and name in serving.adapters), None)
            found = base and base.adapted(str(name))
        if found is None:
            have = ", ".join([*self.names, *filter(None, [some_names(self.adapter_names)])])
            raise ModelNotFound(f"model {shorten(name)} is not served here: available are {have}", field="model")
        return found

    async def pick(self, name: str | None) -> Serving:
        """The model of a name, when it takes requests. Raises NotReady and ModelNotFound."""
        self.host.check_ready()
        found = await self._found(name)
        serving = found.base or found
        serving.used = time.monotonic()
        if serving.residence == "asleep":
            raise ModelAsleep(f"model {serving.model_names[0]!r} is asleep: POST /wake_up wakes it", field="model")
        if serving.residence == "idle":
            await self.rouse(serving)
        return serving.adapted(found.lora) if found.lora else serving

    async def _found(self, name: str | None) -> Serving:
        """As `find`; an adapter that nobody loaded is looked for where there are resolvers. One that does not fit a model may fit the next."""
        try:
            return self.find(name)
        except ModelNotFound as error:
            wrong: RequestError = error
            for serving in [one for one in self if one.config.lora.on]:
                if serving.residence == "idle" and may_have(serving.config, str(name)):
                    await self.rouse(serving)
                try:
                    if serving.residence == "loaded" and await find_adapter(serving.config, serving.engine.steering, str(name)):
                        return serving.adapted(str(name))
                except RequestError as other:
                    wrong = other if wrong is error else wrong
        raise wrong

    async def rest(self, serving: Serving, residence: Residence, *, wait_s: float = 0.0) -> None:
        """End a model's engine process, whose memory is free then. What still runs after wait_s seconds ends with an error."""
        if residence == "asleep" or serving.residence == "loaded":
            was, serving.residence = serving.residence, residence  # no new request from here on
            if was == "loaded":
                await serving.engine.drain(wait_s)
                await serving.engine.close("the model was put to sleep or unloaded while this request ran")

    async def rouse(self, serving: Serving) -> None:
        """Start an engine process for a model that has none, once for all who ask. Raises EngineDead with what stopped it."""
        if serving.residence == "loaded":
            return
        task = self._rousing.get(id(serving))
        if task is None:
            task = self._rousing[id(serving)] = asyncio.create_task(self._rouse(serving))
            task.add_done_callback(lambda _: self._rousing.pop(id(serving), None))
        await asyncio.shield(task)  # a client that leaves does not stop it for the others

    async def _rouse(self, serving: Serving) -> None:
        try:
            serving.engine = await self._started(serving.engine.another(), serving.engine.steering.loads)
        except LlmxError as error:
            raise EngineDead(f"the model cannot be loaded: {error}") from error
        serving.residence, serving.used = "loaded", time.monotonic()
        serving.metrics.name_model(serving.model_names[0], serving.engine.info)

    async def _started(self, engine: AsyncEngine, loads: Mapping[str, Control] = MappingProxyType({})) -> AsyncEngine:
        """loads: LoRA adapters to load again. Those that cannot be any more are left out."""
        self._starting[id(engine)] = engine
        try:
            await engine.start()
            await _load_again(engine, loads)
        except Exception:
            await engine.close()
            raise
        finally:
            del self._starting[id(engine)]
        return engine

    async def load(self, options: dict[str, Any]) -> Serving:
        """Serve one more model. options: its own, `model` among them. Raises what stopped it, RequestError for a name that is taken."""
        if self.make_engine is None:
            raise RequestError("this server cannot load further models: it was not started by `llmx serve`", field="model")
        engine = await self._started(self.make_engine(options))
        first = self.default
        serving = Serving(engine, engine.config, Metrics(beside=first.metrics), first.make_forms, self.host)
        try:
            check_names([*self.names, *self.adapter_names, *serving.model_names])
        except ConfigError as error:
            await engine.close()
            raise RequestError(str(error), field="model") from error
        self._servings.append(serving)
        serving.metrics.name_model(serving.model_names[0], engine.info)
        return serving

    async def unload(self, serving: Serving, *, wait_s: float = 0.0) -> None:
        """Serve a model no more. Raises RequestError for the only one."""
        if len(self) == 1:
            raise RequestError("it is the only model of this server: POST /sleep frees its memory", field="model")
        self._servings.remove(serving)
        await self.rest(serving, "asleep", wait_s=wait_s)
        serving.metrics.forget()

    async def rest_idle(self, limit_s: float) -> None:
        """For ever: end the engines of models that had no request for limit_s seconds; the next request starts one again."""
        while True:
            await asyncio.sleep(min(limit_s / 4, 1.0))
            now = time.monotonic()
            for serving in self:
                if serving.residence == "loaded" and serving.engine.num_running:
                    serving.used = now
                elif serving.residence == "loaded" and now - serving.used > limit_s:
                    _log.info("model %s had no request for %g s (--idle-unload): unloaded", serving.model_names[0], limit_s)
                    await self.rest(serving, "idle")

    def became_ready(self) -> None:
        """The engines have started: their names are known now. Raises ConfigError when two models have the same."""
        check_names([*self.names, *self.adapter_names])
        for serving in self:
            serving.metrics.name_model(serving.model_names[0], serving.engine.info)

    async def close(self, why: str = "the engine was closed") -> None:
        """End all engine processes; what still runs ends with `why`."""
        await asyncio.gather(self.host.templates.close(), *(engine.close(why) for engine in self._engines()))

    def kill(self) -> None:
        """End all engine processes at once."""
        for engine in self._engines():
            engine.kill()

    def _engines(self) -> list[AsyncEngine]:
        return [*(serving.engine for serving in self), *self._starting.values()]


def models_of(request: HTTPConnection) -> ServedModels:
    """The models of the application that handles a request or a WebSocket."""
    models: ServedModels = request.app.state.models
    return models


async def open_body(request: Request, kind: type[B]) -> tuple[Serving, B]:
    """(model, body): a JSON body as `kind`, and the model that its field `model` names. Raises NotReady, ModelNotFound and what read_body raises."""
    models = models_of(request)
    models.host.check_ready()
    body = await read_body(request, kind)
    serving = await models.pick(cast(_NamesModel, body).model)
    request.scope["llmx.serving"] = serving  # for serving_of, and the label of what is counted when it fails
    return serving, body


async def _load_again(engine: AsyncEngine, loads: Mapping[str, Control]) -> None:
    for name, load in loads.items():
        try:
            await engine.steering.load_adapter(**json.loads(load.argument))
        except RequestError as error:
            _log.warning("adapter %s is not there after the model was loaded again: %s", name, error)

"""ServedModels: the models of one server, found by the name that a request brings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, cast

from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request

from llmx.config import EngineConfig
from llmx.errors import ModelNotFound
from llmx.resolve import check_names
from llmx_server.body import read_body, shorten
from llmx_server.serving import Host, Serving

__all__ = ["ServedModels", "models_of", "open_body"]


class _NamesModel(Protocol):
    model: str | None


B = TypeVar("B", bound=BaseModel)


class ServedModels:
    """Servings in the order in which they were named; the first is the default. Each has an engine process of its own."""

    def __init__(self, servings: Sequence[Serving], host: Host) -> None:
        self._servings = list(servings)
        self.host = host

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

    def find(self, name: str | None) -> Serving:
        """The model of a name; none means the default. Raises ModelNotFound."""
        found = self.default if not name else next((serving for serving in self if name in serving.model_names), None)
        if found is None:
            raise ModelNotFound(f"model {shorten(name)} is not served here: available are {', '.join(self.names)}", field="model")
        return found

    async def pick(self, name: str | None) -> Serving:
        """The model of a name, when it takes requests. Raises NotReady and ModelNotFound."""
        self.host.check_ready()
        return self.find(name)

    def became_ready(self) -> None:
        """The engines have started: their names are known now. Raises ConfigError when two models have the same."""
        check_names(self.names)
        for serving in self:
            serving.metrics.name_model(serving.model_names[0], serving.engine.info)

    async def close(self, why: str = "the engine was closed") -> None:
        """End all engine processes; what still runs ends with `why`."""
        await asyncio.gather(*(serving.engine.close(why) for serving in self))

    def kill(self) -> None:
        """End all engine processes at once."""
        for serving in self:
            serving.engine.kill()


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

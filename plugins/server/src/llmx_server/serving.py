"""What every route needs of the model that it serves: the engine, its configuration, the metrics; and what all models of a server share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from starlette.requests import HTTPConnection

from llmx.config import EngineConfig
from llmx.errors import EngineDead, ModelNotFound, RequestError
from llmx.pooling_params import check_pooling
from llmx_server.body import shorten
from llmx_server.errors import NotReady
from llmx_server.metrics import Metrics
from llmx_server.request_templates import RequestTemplates
from llmx_server.version import version

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine
    from llmx_server.chat_forms import ChatForms

__all__ = ["Host", "Phase", "Residence", "Serving", "serving_of"]

Phase = Literal["loading", "ready", "draining"]
Residence = Literal["loaded", "asleep", "idle"]  # asleep: until somebody wakes it; idle: until the next request

_THREAD_CHARS = 16_384  # longer texts are tokenized, and longer conversations rendered, on a thread, so that other streams go on meanwhile


@dataclass(slots=True)
class Host:
    """What the models of one server share. `phase` is changed by lifecycle only."""

    phase: Phase = "ready"
    started: int = field(default_factory=lambda: int(time.time()))  # unix time; `created` of the models
    templates: RequestTemplates = field(default_factory=RequestTemplates)  # those that requests bring
    leaving: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server begins to drain

    def check_ready(self) -> None:
        """Raise NotReady while requests cannot be taken."""
        if self.phase == "loading":
            raise NotReady("the model is still loading: try again when /ready answers 200")
        if self.phase == "draining":
            raise NotReady("the server is shutting down and takes no new requests")


@dataclass(slots=True)
class Serving:
    """One model of a server. llmx_server.served_models finds it by name."""

    engine: AsyncEngine
    config: EngineConfig
    metrics: Metrics
    make_forms: Callable[[AsyncEngine, EngineConfig], ChatForms]
    host: Host = field(default_factory=Host)
    residence: Residence = "loaded"
    used: float = field(default_factory=time.monotonic)  # when a request last came or ran
    _forms: ChatForms | None = None
    lora: str = ""  # requests use this adapter; then `base` is the model without it
    base: Serving | None = None

    @property
    def adapters(self) -> Mapping[str, Mapping[str, Any]]:
        """LoRA adapters of the model by name, each addressed like a model: path, rank, digest, pinned, bytes."""
        return self.engine.steering.adapters

    def adapted(self, name: str) -> Serving:
        """The same model for a request that names an adapter."""
        return replace(self, lora=name, base=self)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names under which the model is served; the first is the default."""
        if self.lora:
            return (self.lora,)
        info = self.engine.info
        return tuple(info.served_names) or (info.name,)

    @property
    def fingerprint(self) -> str:
        """system_fingerprint: changes with the version and with the platform."""
        return f"llmx-{version()}-{self.engine.info.platform}"

    @property
    def phase(self) -> Phase:
        """The server's phase."""
        return self.host.phase

    def check_ready(self) -> None:
        """Raise NotReady while requests cannot be taken."""
        self.host.check_ready()

    def check_generates(self) -> None:
        """Raise NotReady while requests cannot be taken, RequestError where the model gives no text."""
        self.check_ready()
        check_pooling(self.engine.info.pooling, None)

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. Raises ModelNotFound for one that is not served; none means the default."""
        names = self.model_names
        if not asked:
            return names[0]
        if asked not in names:
            raise ModelNotFound(f"model {shorten(asked)} is not served here: available are {', '.join(names)}", field="model")
        return asked

    def check_priority(self, priority: int) -> None:
        """Raise RequestError for a priority that this server would not heed."""
        if priority and self.config.scheduler.policy != "priority":
            message = f"priority is {priority}: this server runs requests in order of arrival, start it with --scheduling-policy priority"
            raise RequestError(message, field="priority")

    @property
    def forms(self) -> ChatForms:
        """What the model's chat template says about tools and reasoning. Read once, when the first chat comes."""
        if self.base is not None:
            return self.base.forms
        if self._forms is None:
            self._forms = self.make_forms(self.engine, self.config)
        return self._forms

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        tokenizer = self.engine.tokenizer
        if len(text) < _THREAD_CHARS:
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)

    async def template_variables(self, template: str | None = None, *, tools: bool = False) -> frozenset[str]:
        """Names that the chat template reads; template: one that the request brings. Raises RequestError."""
        if template is None:
            return self.engine.chat_template.variables()
        if not self.config.server.trust_request_template:
            why = "a template runs on the server: start it with --trust-request-chat-template or --chat-template, or send chat_template_kwargs"
            raise RequestError(f"chat_template is {shorten(template)}, which is not allowed here: {why}", field="chat_template")
        return await self.host.templates.variables(template, self.engine.tokenizer.names, tools=tools)

    async def render(self, arguments: Mapping[str, Any], template: str | None = None) -> str:
        """The prompt that the chat template makes, the model's or the one that the request brings (once template_variables has allowed it).

        Raises RequestError with the template's own message.
        """
        if template is not None:
            return await self.host.templates.render(template, self.engine.tokenizer.names, arguments)
        own = self.engine.chat_template
        if _size(arguments) < _THREAD_CHARS:
            return own.render(**arguments)
        return await asyncio.to_thread(own.render, **arguments)

    async def check_alive(self) -> None:
        """Raise EngineDead when the engine does not answer for itself."""
        ok, reason = await self.engine.health()
        if not ok:
            raise EngineDead(reason)


def _size(arguments: Mapping[str, Any]) -> int:
    """Characters that a template has to do with, roughly. A message counts for some, however short it is."""
    return sum(100 + len(text) if isinstance(text := message.get("content"), str) else 1000 for message in arguments["messages"])


def serving_of(request: HTTPConnection) -> Serving:
    """The Serving that answers a request: that of the model which its body names, once that is read (served_models.open_body); before, the first model's."""
    serving: Serving = request.scope.get("llmx.serving") or request.app.state.models.default
    return serving

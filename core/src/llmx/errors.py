"""The one tree of errors.

LlmxError
├── RequestError          the request is wrong or cannot be taken now; answered 4xx/503, never touches another request
│   ├── PromptTooLong     400: prompt (plus what it asks for) does not fit the model or the KV cache
│   ├── GrammarError      400: a schema, regular expression or grammar that cannot be used; says where and why
│   ├── ModelNotFound     404: the request names a model that is not served
│   ├── QueueFull         503: the waiting queue is at its limit; carries `retry_after_s`
│   │   └── QueueTimeout  503: it waited longer than --queue-timeout for its first step
│   ├── RequestTimeout    408: it was not answered within --request-timeout
│   └── RequestFailed     500: the engine failed at this request alone
├── ConfigError           an option or a combination of options is wrong; raised before the start
├── ModelError            a model file is missing, corrupt or unsupported; names file and reason
├── PlatformError         no platform, a tie, a device that fails, a forced kernel that cannot be used
├── PluginError           a plugin is broken or incompatible; names the plugin
├── ProgramError          a Program breaks a rule of `llmx.program.verify`; names the op
└── EngineDead            the engine process ended; the request was not answered

A client sees RequestError and EngineDead; the others stop the start.
Every message says what, which value, which limit, and what to do.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

__all__ = [
    "ConfigError",
    "Conflict",
    "EngineDead",
    "GrammarError",
    "LlmxError",
    "ModelError",
    "ModelNotFound",
    "PlatformError",
    "PluginError",
    "ProgramError",
    "PromptTooLong",
    "QueueFull",
    "QueueTimeout",
    "RequestAborted",
    "RequestError",
    "RequestFailed",
    "RequestTimeout",
    "some_names",
]


class LlmxError(Exception):
    """Base of every error that llmx raises on purpose."""


class RequestError(LlmxError):
    """A request that cannot be served; `status` is the HTTP status that fits, `field` the parameter at fault."""

    status = 400

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(RequestError):
    """The prompt, or the prompt and what it may generate, does not fit."""


class GrammarError(RequestError):
    """A schema, regular expression or grammar is wrong, or no backend can honour it."""


class ModelNotFound(RequestError):
    """The request names a model that this server does not serve."""

    status = 404


class QueueFull(RequestError):
    """The waiting queue is full; try again after `retry_after_s` seconds."""

    status = 503

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueTimeout(QueueFull):
    """The request waited too long for its first step."""


class RequestTimeout(RequestError):
    """The request was not answered within the time that the server gives it."""

    status = 408


class RequestAborted(RequestError):
    """An administrator ended the request; it may be sent again."""

    status = 503


class Conflict(RequestError):
    """It does not go with what the engine is doing already."""

    status = 409


class RequestFailed(RequestError):
    """Something went wrong inside, at this request alone; nothing in the request is known to be at fault."""

    status = 500


class ConfigError(LlmxError):
    """An option is wrong: `field` names it, the message gives value, limit and remedy."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ModelError(LlmxError):
    """A model cannot be loaded: `path` names the file, the message the reason."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class PlatformError(LlmxError):
    """A platform, device or kernel cannot be used as asked."""


class PluginError(LlmxError):
    """A plugin is broken or does not fit this core; `plugin` is its entry-point name."""

    def __init__(self, message: str, *, plugin: str) -> None:
        super().__init__(f"plugin {plugin!r}: {message}")
        self.plugin = plugin


class ProgramError(LlmxError):
    """A Program breaks a rule; the message names the op by index and kind."""


class EngineDead(LlmxError):
    """The engine process ended before the request was answered. detail: a traceback, for logs only."""

    def __init__(self, message: str = "", *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


def some_names(names: Collection[str], most: int = 10) -> str:
    """The first names for a message, and how many there are beside them."""
    more = len(names) - most
    return ", ".join(islice(names, most)) + (f" and {more} more" if more > 0 else "")

"""Where answers come from: a model in this process, or any OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from llmx.errors import LlmxError, RequestError
from llmx.record import record
from llmx_cli.error_body import error_message
from llmx_cli.options import Settings
from llmx_cli.pull import fetched

if TYPE_CHECKING:
    from llmx.engine.llm import LLM

__all__ = ["LocalSource", "RemoteSource", "Sampling", "Source", "open_source"]

_TIMEOUT_S = 600  # without a byte from the server


@record
class Sampling:
    """What a user may say about sampling. temperature None: the model's own; max_tokens None: until the model stops or the context is full."""

    temperature: float | None = None
    max_tokens: int | None = None


class Source(Protocol):
    """Answers piece by piece, as they are made."""

    def chat(self, messages: list[dict[str, str]], sampling: Sampling) -> Iterator[str]:
        """The answer to a conversation."""
        ...

    def complete(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """The continuation of a text."""
        ...

    def close(self) -> None:
        """Frees what the source holds."""
        ...


def open_source(settings: Settings, url: str | None, api_key: str | None) -> Source:
    """A server's source when a URL is given, else the model loaded here."""
    if url is not None:
        return RemoteSource(url, api_key, settings.options.get("model"))
    from llmx.engine.llm import LLM

    return LocalSource(LLM(**fetched(settings)))


class LocalSource:
    """A model in this process; no network."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def chat(self, messages: list[dict[str, str]], sampling: Sampling) -> Iterator[str]:
        """The answer to a conversation, rendered by the model's template."""
        text = self._llm.chat_template.render(messages)
        return self._stream(self._llm.tokenizer.encode(text, add_special_tokens=False), sampling)

    def complete(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """The continuation of a text."""
        return self._stream(self._llm.tokenizer.encode(prompt), sampling)

    def close(self) -> None:
        """Frees the model."""
        self._llm.close()

    def _stream(self, prompt: list[int], sampling: Sampling) -> Iterator[str]:
        params = replace(self._llm.get_default_sampling_params(), max_tokens=sampling.max_tokens)
        if sampling.temperature is not None:
            params = replace(params, temperature=sampling.temperature)
        for output in self._llm.stream(prompt, params):
            (answer,) = output.outputs
            if answer.error:
                raise LlmxError(answer.error)
            yield answer.text_delta


class RemoteSource:
    """An OpenAI-compatible server. url: its base, with or without /v1. model None: the first that the server lists."""

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        self._url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1") + "/v1"
        self._api_key = api_key
        self._model = model or self._first_model()

    def chat(self, messages: list[dict[str, str]], sampling: Sampling) -> Iterator[str]:
        """The answer to a conversation."""
        for choice in self._stream("/chat/completions", {"messages": messages}, sampling):
            yield choice.get("delta", {}).get("content") or ""

    def complete(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """The continuation of a text."""
        for choice in self._stream("/completions", {"prompt": prompt}, sampling):
            yield choice.get("text") or ""

    def ask(self, path: str, body: dict[str, Any] | None = None, *, below: str = "/v1") -> dict[str, Any]:
        """The answer of a path below /v1, or below another, as JSON; a body is sent by POST. Raises RequestError with what the server says."""
        with self._open(path, None if body is None else json.dumps(body).encode(), below) as response:
            return dict(json.load(response))

    def close(self) -> None:
        """Nothing is held between requests."""

    def _first_model(self) -> str:
        with self._open("/models", None) as response:
            models = json.load(response).get("data") or []
        if not models:
            raise RequestError(f"{self._url} serves no model")
        return str(models[0]["id"])

    def _stream(self, path: str, body: dict[str, Any], sampling: Sampling) -> Iterator[dict[str, Any]]:
        asked = {"model": self._model, "stream": True, **body}
        if sampling.temperature is not None:
            asked["temperature"] = sampling.temperature
        if sampling.max_tokens is not None:
            asked["max_tokens"] = sampling.max_tokens
        with self._open(path, json.dumps(asked).encode()) as response:
            for line in response:
                data = line.decode().removeprefix("data:").strip()
                if not line.startswith(b"data:") or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise RequestError(str(event["error"].get("message", event["error"])))
                yield from event.get("choices", [])[:1]

    def _open(self, path: str, body: bytes | None, below: str = "/v1") -> Any:
        import urllib.error  # 30 ms that other commands need not pay
        import urllib.request

        url = self._url.removesuffix("/v1") + below + path
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self._api_key}"} if self._api_key else {})}
        try:
            return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise RequestError(f"{url} answered {error.code}: {error_message(error.read())}") from error
        except (OSError, ValueError) as error:
            raise RequestError(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from error

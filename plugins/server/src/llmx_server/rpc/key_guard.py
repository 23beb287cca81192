"""KeyGuard: gRPC services that are not the application's own ask for a key as well, where the server asks for keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from llmx_server.auth import NO_VALID_KEY, shown_key
from llmx_server.callers import Callers
from llmx_server.rpc.call import headers_of

__all__ = ["KeyGuard"]


class KeyGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the library has no types
    """Default deny: a service that is not in open_services needs a key of `callers`, of any scope."""

    def __init__(self, callers: Callers, open_services: Sequence[str]) -> None:
        self._callers, self._open = callers, frozenset(open_services)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The handler of a call, or one that refuses it."""
        service = handler_call_details.method.removeprefix("/").rpartition("/")[0]
        shown = shown_key(headers_of(handler_call_details.invocation_metadata))
        if service in self._open or (shown and self._callers.keys.find(shown)):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, NO_VALID_KEY)

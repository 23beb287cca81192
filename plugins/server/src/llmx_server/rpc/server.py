"""RpcServer: the gRPC port of a server, in the server's own event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from llmx.config import ServerConfig
from llmx.errors import ConfigError
from llmx_server.app import Application
from llmx_server.in_process import InProcess
from llmx_server.listen import uses_tls
from llmx_server.protocol.pooling_routes import EMBEDDINGS
from llmx_server.rpc.answers import embed_response, events_of, generate_response, models_response
from llmx_server.rpc.bodies import embed_body, generate_body, generate_path
from llmx_server.rpc.call import AppCall
from llmx_server.rpc.health import HEALTH, Health
from llmx_server.rpc.key_guard import KeyGuard
from llmx_server.rpc.schema import SERVICE, message_type
from llmx_server.tls import tls_files

__all__ = ["RpcServer"]

_GRACE_S = 1.0  # for the last bytes of ended calls; nothing runs any more then but reflection and those who watch the health


class RpcServer:
    """running: the tasks that the end of the server waits for; calls that are being answered are added to them."""

    def __init__(self, app: Application, config: ServerConfig, running: set[asyncio.Task[Any]]) -> None:
        self._app, self._config, self._running, self._inside = app, config, running, InProcess(lambda: app)
        guards = [KeyGuard(app.state.callers, open_services=(SERVICE, HEALTH))] if app.state.callers is not None else []
        options = [("grpc.max_receive_message_length", config.grpc_max_message_bytes), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(interceptors=guards, options=options)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        self._health = Health((SERVICE,), self._is_ready)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), self._server)
        self._follows: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen. Returns the address. Raises ConfigError when the port cannot be had."""
        host = self._config.host or "[::]"
        address = f"[{host}]" if ":" in host and not host.startswith("[") else host
        try:
            port = self._add_port(f"{address}:{self._config.grpc_port}")
        except RuntimeError as error:
            raise ConfigError(f"cannot listen for gRPC on {address} port {self._config.grpc_port}: {error}", field="grpc_port") from error
        await self._health.refresh()
        await self._server.start()
        self._follows = asyncio.create_task(self._health.follow(self._app.state.models.host.leaving))
        return f"{address}:{port}"

    async def stop(self) -> None:
        """Take no more calls and end those that are still there."""
        if self._follows is not None:
            self._follows.cancel()
            await asyncio.gather(self._follows, return_exceptions=True)
        await self._server.stop(_GRACE_S if self._running else None)

    def _add_port(self, address: str) -> int:
        if not uses_tls(self._config):
            return int(self._server.add_insecure_port(address))
        key, certificate, clients = tls_files(self._config)
        credentials = grpc.ssl_server_credentials([(key, certificate)], clients, require_client_auth=clients is not None)
        return int(self._server.add_secure_port(address, credentials))

    def _handlers(self) -> dict[str, Any]:
        request, response = "GenerateRequest", "GenerateResponse"
        return {
            "Generate": _handler(grpc.unary_stream_rpc_method_handler, self._generate, request, response),
            "Embed": _handler(grpc.unary_unary_rpc_method_handler, self._embed, "EmbedRequest", "EmbedResponse"),
            "ListModels": _handler(grpc.unary_unary_rpc_method_handler, self._list_models, "ListModelsRequest", "ListModelsResponse"),
        }

    def _call(self, context: Any) -> AppCall:
        return AppCall(self._app, context, self._running, self._config.reader_timeout_s)

    async def _generate(self, request: Any, context: Any) -> None:
        call, failed = self._call(context), list[dict[str, Any]]()

        async def on_part(data: bytes) -> None:
            events = events_of(data)
            failed.extend(event for event in events if "error" in event)
            response = generate_response([event for event in events if "error" not in event])
            if response is not None:
                await call.write(response)

        await call.streamed(generate_path(request), lambda: generate_body(request), on_part)
        if failed:
            await call.fail_by_event(failed[0])

    async def _embed(self, request: Any, context: Any) -> Any:
        return embed_response(await self._call(context).whole("POST", EMBEDDINGS, lambda: embed_body(request)))

    async def _list_models(self, request: Any, context: Any) -> Any:
        return models_response(await self._call(context).whole("GET", "/v1/models"))

    async def _is_ready(self) -> bool:
        return (await self._inside.get("/ready")).status == 200


def _handler(make: Any, behavior: Any, request: str, response: str) -> Any:
    return make(behavior, request_deserializer=message_type(request).FromString, response_serializer=message_type(response).SerializeToString)

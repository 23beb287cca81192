"""LoRA adapters at run time: /v1/load_lora_adapter and /v1/unload_lora_adapter, under the names that clients of such servers know.

They need the scope admin where keys are in use. No page of another origin may ask for them.
"""

from __future__ import annotations

from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from llmx.errors import ModelNotFound, RequestError, some_names
from llmx_server.body import BodyModel, read_body, shorten
from llmx_server.errors import JsonResponse
from llmx_server.routes.admin import admin_of
from llmx_server.routing import Router
from llmx_server.served_models import ServedModels
from llmx_server.serving import Serving

__all__ = ["LoadAdapter", "UnloadAdapter", "router"]

router = Router()


class LoadAdapter(BodyModel):
    """An adapter to serve from now on. lora_path: its folder on the server. load_inplace: replace one of that name.

    pin: keep it in a device slot. base_model: the model that it belongs to, where several are served.
    """

    model_config = ConfigDict(extra="forbid")

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    pin: bool = False
    base_model: str | None = None


class UnloadAdapter(BodyModel):
    """An adapter to serve no more. lora_int_id is not looked at."""

    model_config = ConfigDict(extra="forbid")

    lora_name: str
    lora_int_id: int | None = None


@router.post("/v1/load_lora_adapter", body=LoadAdapter)
async def load(request: Request) -> Response:
    """Load a LoRA adapter; its name is a model's name from then on."""
    models = admin_of(request)
    body = await read_body(request, LoadAdapter)
    serving = await _base(models, body.base_model)
    if body.lora_name in models.names or any(body.lora_name in one.adapters for one in models if one is not serving):
        raise RequestError(f"lora_name is {shorten(body.lora_name)}, which is the name of a model here: give another", field="lora_name")
    facts = await serving.engine.steering.load_adapter(body.lora_name, body.lora_path, in_place=body.load_inplace, pin=body.pin)
    return JsonResponse({"id": body.lora_name, "object": "model", "parent": serving.model_names[0], "rank": facts["rank"], "pinned": facts["pinned"]})


@router.post("/v1/unload_lora_adapter", body=UnloadAdapter)
async def unload(request: Request) -> Response:
    """Serve a LoRA adapter no more. Requests that had begun keep it until they end."""
    models = admin_of(request)
    body = await read_body(request, UnloadAdapter)
    serving = next((one for one in models if body.lora_name in one.adapters), None)
    if serving is None:
        have = some_names(models.adapter_names) or "none"
        raise ModelNotFound(f"lora_name is {shorten(body.lora_name)}: no adapter of that name is loaded; loaded: {have}", field="lora_name")
    await serving.engine.steering.unload_adapter(body.lora_name)
    return JsonResponse({"id": body.lora_name, "object": "model", "unloaded": True})


async def _base(models: ServedModels, name: str | None) -> Serving:
    serving = await models.pick(name)
    if serving.lora:
        raise RequestError(f"base_model is {shorten(name)}, which is an adapter: give the model's name", field="base_model")
    return serving

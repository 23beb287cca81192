"""/v1/files: upload, list, show, download, delete."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from llmx.errors import RequestError
from llmx_server.batches import Batches
from llmx_server.body import shorten
from llmx_server.caller import caller
from llmx_server.errors import JsonResponse, NotFound
from llmx_server.file_store import MAX_FILE_BYTES
from llmx_server.protocol.batches import expiry
from llmx_server.protocol.pages import page_of
from llmx_server.routing import Router
from llmx_server.upload import read_upload

__all__ = ["batches_of", "router"]

router = Router()

_MOST = 10_000  # files in one page


def batches_of(request: Request) -> Batches:
    """The batches and files of the application. Raises NotFound where they are off."""
    batches: Batches | None = request.app.state.batches
    if batches is None:
        raise NotFound("this server keeps no files and runs no batches: start it with --files-dir FOLDER, or use llmx run-batch")
    return batches


@router.post("/v1/files")
async def upload_file(request: Request) -> Response:
    """Keep a file of requests."""
    files = batches_of(request).files
    async with read_upload(request, MAX_FILE_BYTES) as (file, form):
        purpose = form.get("purpose")
        if purpose != "batch":
            raise RequestError(f"purpose is {shorten(purpose)}: files are of use for batches only, send batch", field="purpose")
        anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
        lives_s = None if anchor is None and seconds is None else expiry(anchor, seconds, "expires_after")
        name = (file.filename or "file")[:255]
        return JsonResponse(_shown(await asyncio.to_thread(files.upload, file.file, name, "batch", lives_s, caller().name)))


@router.get("/v1/files")
async def list_files(request: Request) -> Response:
    """The files, newest first unless order is asc."""
    purpose = request.query_params.get("purpose")
    found = [_shown(one) for one in batches_of(request).files.all(caller()) if purpose in (None, one["purpose"])]
    return JsonResponse(page_of(found, request.query_params, most=_MOST, default=_MOST))


@router.get("/v1/files/{file_id}")
async def show_file(request: Request, file_id: str) -> Response:
    """One file's description."""
    return JsonResponse(_shown(batches_of(request).files.get(file_id, caller())))


@router.get("/v1/files/{file_id}/content")
async def download_file(request: Request, file_id: str) -> Response:
    """What a file holds."""
    return FileResponse(batches_of(request).files.path(file_id, caller()), media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> Response:
    """Remove a file, unless a batch still reads it."""
    batches = batches_of(request)
    batches.files.get(file_id, caller())
    if reader := batches.reads(file_id):
        raise RequestError(f"file {shorten(file_id)} is read by {reader}: cancel that batch first", field="file_id")
    batches.files.delete(file_id, caller())
    return JsonResponse({"id": file_id, "object": "file", "deleted": True})


def _shown(file: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in file.items() if name != "owner"}

"""Uploads: one file and a few fields, as multipart/form-data, read with a limit."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.types import Message

from llmx.errors import RequestError
from llmx_server.body import shorten
from llmx_server.errors import BodyTooLarge

__all__ = ["read_upload"]

_MAX_FIELDS = 10
_BESIDE = 64 * 1024  # bytes for fields and boundaries


@asynccontextmanager
async def read_upload(request: Request, limit: int) -> AsyncGenerator[tuple[UploadFile, FormData], None]:
    """(the field `file`, all fields); gone at the end. Raises RequestError: 413 above `limit` bytes; 400 for anything but such a form."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise RequestError(f"Content-Type is {shorten(kind)}: send a form, multipart/form-data, with file and purpose", field="Content-Type")
    announced = request.headers.get("content-length", "")
    seen = 0

    async def receive() -> Message:
        nonlocal seen
        message = await request.receive()
        seen += len(message.get("body", b""))
        check(seen)
        return message

    def check(bytes_: int) -> None:
        if bytes_ > limit + _BESIDE:
            raise BodyTooLarge(f"the upload has more than {limit} bytes, which is the limit of one file: split it", field="file")

    check(int(announced) if announced.isdecimal() else 0)
    async with Request(request.scope, receive).form(max_files=1, max_fields=_MAX_FIELDS) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise RequestError("file is missing: send it as a part with a filename", field="file")
        if file.size is not None and file.size > limit:
            raise BodyTooLarge(f"the file has {file.size} bytes, at most {limit} are taken: split it", field="file")
        yield file, form

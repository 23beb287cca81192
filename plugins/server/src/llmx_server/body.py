"""A request's JSON body, read with a limit and parsed into a model; every fault is a 4xx that names the field."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from llmx.errors import RequestError
from llmx_server.errors import BodyTooLarge

__all__ = ["MAX_BODY_BYTES", "BodyModel", "as_model", "read_body", "read_bytes", "shorten", "whole"]

MAX_BODY_BYTES = 32 * 2**20  # far above any prompt that fits a context, far below what hurts
_SHOWN = 80  # characters of a value that an error message repeats

M = TypeVar("M", bound=BaseModel)


class BodyModel(BaseModel):
    """What bodies have in common: no value is turned into another type, and fields that no model declares are kept for extra_fields.py.

    A model is built with the first body that needs it: a server never sees most kinds, and building all takes a tenth of its start.
    """

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=(), defer_build=True)


async def read_body(request: Request, model: type[M]) -> M:
    """The body as `model`.

    Raises RequestError: 413 above MAX_BODY_BYTES; 400 for another content type, for what is not JSON (also for nesting
    too deep to parse and for half surrogate pairs) and for a field that breaks its type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(f"Content-Type is {shorten(kind)}: send JSON with the header `Content-Type: application/json`", field="Content-Type")
    data = await read_bytes(request)
    try:
        value = from_json(data)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise RequestError(f"the body is a JSON {_json_type(value)}: it must be an object")
    return as_model(value, model)


def as_model(value: dict[str, Any], model: type[M]) -> M:
    """A JSON object as `model`. Raises RequestError for a field that breaks its type.

    A whole number may be written with a point (16.0), as in JSON Schema; it is put into `value` as an int.
    """
    given = {name: item for name, item in value.items() if item is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        if not _made_whole(given, error):
            raise _field_error(error) from error
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _field_error(error) from error


def whole(value: Any) -> Any:
    """`value`, as an int where it is a float without a fraction; for fields that the models leave untyped."""
    return int(value) if type(value) is float and value.is_integer() else value


def shorten(value: Any) -> str:
    """repr of a value, cut to a length that is safe to show; the value itself is not walked when it is large."""
    if isinstance(value, list | dict):
        return f"a {_json_type(value)} of {len(value)}" if len(value) > 4 or any(isinstance(v, list | dict) for v in value) else repr(value)[:_SHOWN]
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
    return repr(value)[:_SHOWN]


async def read_bytes(request: Request) -> bytes:
    """The body as it came. Raises BodyTooLarge above MAX_BODY_BYTES."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY_BYTES:
        raise BodyTooLarge(f"the body has {announced} bytes, at most {MAX_BODY_BYTES} are read")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes, which is the limit")
        parts.append(part)
    return b"".join(parts)


def _made_whole(given: dict[str, Any], error: ValidationError) -> bool:
    """Turn the floats that were no ints into ints where nothing is lost; whether any was."""
    found = False
    for fault in error.errors(include_url=False, include_context=False):
        if fault["type"] != "int_type" or type(number := fault["input"]) is not float or not number.is_integer():
            continue
        inside: Any = given
        *way, last = [part for part in fault["loc"] if isinstance(part, int) or part in given]  # without the names of a union's members
        for part in way:
            inside = inside[part]
        inside[last] = int(number)
        found = True
    return found


def _field_error(error: ValidationError) -> RequestError:
    faults = error.errors(include_url=False, include_context=False)
    first = faults[0]
    name = str(first["loc"][0]) if first["loc"] else "body"
    same = [fault for fault in faults if fault["loc"][:1] == first["loc"][:1]]
    if first["type"] == "missing":
        return RequestError(f"{name} is missing: it is required", field=name)
    reasons = list(dict.fromkeys(_reason(fault) for fault in same))[:4]
    place = name + "".join(f"[{part}]" for part in first["loc"][1:2] if isinstance(part, int))
    return RequestError(f"{place} is {shorten(first['input'])}: {' or '.join(reasons)}", field=name)


def _reason(fault: ErrorDetails) -> str:
    text = fault["msg"]
    return text[0].lower() + text[1:]


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")

"""A command's options as a dataclass: fields annotated with typer options become parameters, and the command gets one object."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

__all__ = ["with_fields"]


def with_fields(kind: type, name: str = "asked") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the command's parameter `name` becomes one parameter per field of the dataclass `kind`."""
    hints = get_type_hints(kind, include_extras=True)
    own = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def with_object(**given: Any) -> Any:
            values = {parameter.name: given.pop(parameter.name) for parameter in own}
            return command(**{name: kind(**values)}, **given)

        rest = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values() if parameter.name != name]
        with_object.__signature__ = signature.replace(parameters=[*own, *rest])  # type: ignore[attr-defined]
        with_object.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *rest)}
        return with_object

    return decorate

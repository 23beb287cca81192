"""`record`: the frozen dataclass of this code base. A start reads about 170 of them, and `dataclasses` compiles six functions for each.

What it makes is a frozen dataclass with slots for everyone who looks: `fields`, `replace`, `asdict`, pickling, pattern matching and
type checkers work as ever. Only `__init__` is compiled; comparing, hashing and showing read the fields by one `attrgetter`.
Plugins may use it, or `dataclasses` as they like (docs/adr/0022-records.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

__all__ = ["record"]

_T = TypeVar("_T")
_GIVEN = object()  # the default of an argument whose real one is made per object


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(cls: type[_T]) -> type[_T]:
    """Make `cls` what `@dataclass(frozen=True, slots=True)` makes of it. Fields must take part in `__init__`."""
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    every = fields(made)
    equal, hashed = _comparing([one.name for one in every if one.compare])
    methods = {"__init__": _init(made, every), "__eq__": equal, "__hash__": hashed, "__reduce__": _reducing([one.name for one in every])}
    for name, method in (methods | {"__repr__": _show, "__setattr__": _refuse_set, "__delattr__": _refuse_delete}).items():
        if name not in cls.__dict__:  # what a class says itself stands
            setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _init(cls: type, every: tuple[Field[Any], ...]) -> Callable[..., None]:
    """`__init__` with the fields as arguments, in order."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_given": _GIVEN}
    arguments, lines = [], []
    for one in every:
        name, argument, value = one.name, one.name, one.name
        if one.default is not MISSING:
            known[f"_default_{name}"], argument = one.default, f"{name}=_default_{name}"
        elif one.default_factory is not MISSING:
            known[f"_make_{name}"], argument = one.default_factory, f"{name}=_given"
            value = f"_make_{name}() if {name} is _given else {name}"
        arguments.append(argument)
        lines.append(f"\n    _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("\n    self.__post_init__()")
    exec(f"def __init__({', '.join(['self', *arguments])}):{''.join(lines) or ' pass'}", known)  # noqa: S102 - names of fields, as dataclasses does
    made: Callable[..., None] = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {one.name: one.type for one in every} | {"return": None}
    return made


def _values(names: list[str]) -> Callable[[Any], Any]:
    """A function that gives the fields' values; a tuple, or one value alone."""
    return attrgetter(*names) if names else lambda self: ()


def _comparing(names: list[str]) -> tuple[Callable[[Any, Any], Any], Callable[[Any], int]]:
    values = _values(names)

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __eq__, __hash__


def _reducing(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    values, alone = _values(names), len(names) == 1

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return self.__class__, (values(self),) if alone else values(self)

    return __reduce__


def _show(self: Any) -> str:
    return f"{self.__class__.__qualname__}({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in fields(self) if one.repr)})"


def _refuse_set(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")

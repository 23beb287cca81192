"""`record` gives what `@dataclass(frozen=True, slots=True)` gives."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from llmx.record import record


class _Plain:
    """Several fields with all kinds of defaults."""

    kind: str
    eps: float
    scale: float = 1.0
    names: tuple[str, ...] = ()
    props: dict[str, int] = field(default_factory=dict)
    note: str = field(default="", compare=False)


class _Empty:
    """No field."""


class _One:
    """One field."""

    value: tuple[int, ...] = ()


class _Checked:
    """Checks itself."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size is {self.size}")

    def __str__(self) -> str:
        return f"<{self.size}>"


def both(cls: type) -> list[Any]:
    """The class as record and as dataclass makes it."""
    copies = [type(cls.__name__, (), {key: value for key, value in cls.__dict__.items() if key not in ("__dict__", "__weakref__")}) for _ in range(2)]
    return [record(copies[0]), dataclass(frozen=True, slots=True)(copies[1])]


@pytest.mark.parametrize(
    ("cls", "args"),
    [(_Plain, ("rms", 1e-5)), (_Plain, ("l2", 0.0, 2.0, ("a",), {"b": 1})), (_Empty, ()), (_One, ((1, 2),)), (_Checked, (3,))],
)
def test_same_as_dataclass(cls: type, args: tuple[Any, ...]) -> None:
    ours, theirs = both(cls)
    mine, other = ours(*args), theirs(*args)
    assert repr(mine) == repr(other)
    assert asdict(mine) == asdict(other)
    assert [(one.name, one.type, one.init) for one in fields(ours)] == [(one.name, one.type, one.init) for one in fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__slots__ == theirs.__slots__
    assert is_dataclass(mine)
    assert not hasattr(mine, "__dict__")
    assert mine == ours(*args)
    assert mine != other
    assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]
    assert copy.deepcopy(mine) == mine
    assert copy.copy(mine) is not mine


def test_frozen() -> None:
    ours, _ = both(_Plain)
    one = ours("rms", 1.0)
    for break_it in (lambda: setattr(one, "eps", 2.0), lambda: delattr(one, "eps"), lambda: setattr(one, "new", 2.0)):
        with pytest.raises(FrozenInstanceError):
            break_it()
    assert one.eps == 1.0


def test_hash_and_compare() -> None:
    ours, _ = both(_One)
    assert hash(ours((1, 2))) == hash(ours((1, 2)))
    assert {ours((1,)): "a"}[ours((1,))] == "a"
    assert ours((1,)) != ours((2,))
    assert ours((1,)) != (1,)
    plain, _ = both(_Plain)
    assert plain("a", 1.0, note="x") == plain("a", 1.0, note="y")  # compare=False
    with pytest.raises(TypeError, match="unhashable"):
        hash(plain("a", 1.0))  # it has a dict


def test_replace_and_defaults() -> None:
    ours, _ = both(_Plain)
    one, two = ours("a", 1.0), ours("a", 1.0)
    assert one.props is not two.props
    assert replace(one, eps=2.0) == ours("a", 2.0)
    with pytest.raises(TypeError):
        replace(one, wrong=1)
    with pytest.raises(TypeError, match="eps"):
        ours("a")
    checked, _ = both(_Checked)
    with pytest.raises(ValueError, match="size is -1"):
        replace(checked(1), size=-1)
    assert str(checked(4)) == "<4>"


@record
class Known:
    """At module level, as pickle needs it."""

    a: int
    b: tuple[int, ...] = ()


@record
class More(Known):
    """Inherits fields."""

    c: str = "c"

    def __repr__(self) -> str:
        return "own"


def test_pickle_inheritance_and_patterns() -> None:
    one = More(1, (2,), "x")
    assert pickle.loads(pickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(Known(5))) == Known(5)
    assert [field.name for field in fields(one)] == ["a", "b", "c"]
    assert repr(one) == "own"
    match one:
        case Known(a, b):
            assert (a, b) == (1, (2,))
    assert More(1) != Known(1)


def test_fewer_functions_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is for: dataclasses compiles no function for it."""
    made: list[str] = []
    original: Callable[..., Any] = dataclasses._create_fn if hasattr(dataclasses, "_create_fn") else None  # type: ignore[attr-defined]
    if original is None:
        pytest.skip("this Python's dataclasses compiles all functions of a class at once")
    monkeypatch.setattr(dataclasses, "_create_fn", lambda name, *args, **kwargs: made.append(name) or original(name, *args, **kwargs))
    both(_Plain)[0]
    assert made.count("__init__") == 1  # the dataclass beside it
    assert made.count("__eq__") == 1

"""The environment that chat templates run in: jinja2's immutable sandbox, set up as transformers does, with bounds.

A template comes with a model file and is foreign code. The sandbox keeps it from attributes with underscores and from changing what
it is given; here its work is bounded too: turns of loops, calls, time, repetitions, paddings, large numbers, and output.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

__all__ = ["ChatEnvironment", "TemplateRefusal"]

_MAX_TURNS = 200_000  # turns of all loops and calls of one rendering; a template needs a few per message
_MAX_SECONDS = 1.0  # of the thread's processor time: beside busy streams a thread gets its share only
_MAX_CHARS = 1 << 24  # of a repeated value, and of what a template renders
_MAX_WIDTH = 10_000  # characters of padding
_MAX_BITS = 4096  # of a product or power
_WIDE = re.compile(r"\d{5,}|\*")


class TemplateRefusal(jinja2.TemplateError):
    """The template itself refused the messages (raise_exception)."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with trimmed blocks, loop controls, `generation` blocks, `raise_exception`, `strftime_now` and a plain `tojson`."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols])
        self._now = threading.local()  # the budget of the rendering that this thread does
        self.filters["tojson"] = _tojson
        self.filters["_counted"] = self._counted
        for name in ("center", "indent"):
            self.filters[name] = _narrow(self.filters[name])
        self.filters["format"] = _percent_format
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_make_dict, namespace=_Namespace)

    def compiled(self, source: str) -> jinja2.Template:
        """The template, every turn of its loops counted. Raises TemplateSyntaxError."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None).set_lineno(loop.lineno)
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def rendered(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """The text. Raises SecurityError past a bound, TemplateRefusal, and whatever the template's expressions raise."""
        self._now.budget = budget = _Budget()
        pieces, left = [], _MAX_CHARS
        for piece in template.generate(variables):
            left -= len(piece)
            if left < 0:
                raise SecurityError(f"the template writes more than {_MAX_CHARS} characters")
            budget.spend()
            pieces.append(piece)
        return "".join(pieces)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: D417
        """A call, counted; refused for a string method that pads far."""
        self._now.budget.spend()
        if isinstance(getattr(obj, "__self__", None), str) and any(isinstance(arg, int) and arg > _MAX_WIDTH for arg in (*args, *kwargs.values())):
            raise SecurityError("the template pads a string very far")
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operator, refused where its result could be huge."""
        if operator == "%" and isinstance(left, str):
            return _percent_format(left, *right) if isinstance(right, tuple) else _percent_format(left, right)
        for value, times in ((left, right), (right, left)) if operator == "*" else ():
            if isinstance(value, str | bytes | list | tuple) and isinstance(times, int) and len(value) * times > _MAX_CHARS:
                raise SecurityError(f"the template repeats a value {times} times")
        if operator != "%" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise SecurityError("the template computes a very large number")
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """str.format inside the sandbox, refused for large widths."""
        if super().wrap_str_format(value) is None:
            return None
        formatter = _Formatter(self)

        def bounded(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                return formatter.vformat(value.__self__, (), args[0])
            return formatter.vformat(value.__self__, args, kwargs)

        return bounded

    def _counted(self, items: Any) -> _Counted:
        return _Counted(items, self._now.budget)


class _Budget:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self._turns = _MAX_TURNS
        self._end = time.thread_time() + _MAX_SECONDS

    def spend(self) -> None:
        """Raises SecurityError when the rendering has looped too often or for too long."""
        self._turns -= 1
        if self._turns < 0:
            raise SecurityError(f"the template loops more than {_MAX_TURNS} times")
        if time.thread_time() > self._end:
            raise SecurityError(f"the template takes longer than {_MAX_SECONDS:g} s")


class _Counted:
    """An iterable that spends one turn per item."""

    def __init__(self, items: Any, budget: _Budget) -> None:
        self._items, self._budget = items, budget

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        spend = self._budget.spend
        for item in self._items:
            spend()
            yield item


class _Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if _WIDE.search(format_spec):
            raise SecurityError("the template formats with a very large width")
        return super().format_field(value, format_spec)


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        """The nodes between the two tags, in a scope of their own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Namespace(Namespace):
    """jinja2's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: B902 - positional, so that a template may use the name `self`
        table = dict(*args[1:], **kwargs)
        for name in table:
            _check_name(name)
        Namespace.__init__(args[0], table)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"the template sets the name {name!r} on a namespace")


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    def narrow(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, int) and arg > _MAX_WIDTH for arg in (*args, *kwargs.values())):
            raise SecurityError("the template pads a string very far")
        return function(*args, **kwargs)

    return narrow


def _percent_format(text: str, *args: Any, **kwargs: Any) -> str:
    if any(_WIDE.search(spec) for spec in re.findall(r"%(?:\([^)]*\))?([^a-zA-Z%]*)", text)):
        raise SecurityError("the template formats with a very large width")
    if kwargs:
        return str(text) % kwargs
    return str(text) % (args[0] if len(args) == 1 and isinstance(args[0], dict) else args)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _make_dict(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(*args, **kwargs)

"""Random JSON schemas: seeded, at most three levels deep, with references and recursion; and the place of every keyword in them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from llmx.structured import subschemas

__all__ = ["COUNT", "keywords_in", "random_schemas"]

COUNT = 600
_PATTERNS = ("^[a-c]{1,4}$", "^x", "[0-9]{2}", "^(ab|cd)+$", r"^\d{3}-\d{2}$", "^[A-Z][a-z]*$")
_FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_NAMES = ("a", "b", "id", "name", "über", 'q"t', "x/y", "n1", "kind", "")


def random_schemas(count: int = COUNT, seed: int = 20261129) -> Iterator[dict[str, Any]]:
    """`count` schemas, always the same ones."""
    for index in range(count):
        yield _Maker(random.Random(seed * 1000 + index)).root()


def keywords_in(schema: Any) -> Iterator[str]:
    """Every keyword of a schema and of those inside it, once for each time it stands there."""
    todo = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            yield from value
            todo += [one for _, _, one in subschemas(value)]


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.defs: dict[str, Any] = {}

    def root(self) -> dict[str, Any]:
        schema = self.rng.choice((self.object, self.object, self.array, self.any_of, self.one_of, self.all_of, self.reference, self.tree))(3)
        return {**schema, "$defs": self.defs} if self.defs else schema

    def schema(self, depth: int) -> dict[str, Any]:
        leaves = (self.string, self.integer, self.number, self.enum, self.const, self.types, self.pattern, self.formatted)
        inner = (self.object, self.array, self.any_of, self.one_of, self.all_of, self.reference)
        return self.rng.choice(leaves if depth <= 1 or self.rng.random() < 0.5 else inner)(depth)

    def maybe(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    # -- leaves

    def string(self, depth: int) -> dict[str, Any]:
        least = self.rng.randint(0, 4)
        limits = {"minLength": least} if self.maybe() else {}
        return {"type": "string", **limits, "maxLength": least + self.rng.randint(0, 5)}

    def pattern(self, depth: int) -> dict[str, Any]:
        return {"type": "string", "pattern": self.rng.choice(_PATTERNS), "maxLength": 12}

    def formatted(self, depth: int) -> dict[str, Any]:
        return {"type": "string", "format": self.rng.choice(_FORMATS)}

    def integer(self, depth: int) -> dict[str, Any]:
        low = self.rng.randint(-200, 200)
        high = low + self.rng.randint(12, 400)
        limits: dict[str, Any] = {self.rng.choice(("minimum", "exclusiveMinimum")): low, self.rng.choice(("maximum", "exclusiveMaximum")): high}
        return {"type": "integer", **limits, **({"multipleOf": self.rng.choice((2, 3, 5))} if self.maybe(0.3) else {})}

    def number(self, depth: int) -> dict[str, Any]:
        if self.maybe(0.3):
            return {"type": "number", "multipleOf": self.rng.choice((0.5, 0.25, 10)), "minimum": -50, "maximum": 50}
        low = round(self.rng.uniform(-20, 20), 1)
        return {"type": "number", self.rng.choice(("minimum", "exclusiveMinimum")): low, self.rng.choice(("maximum", "exclusiveMaximum")): low + 7.5}

    def enum(self, depth: int) -> dict[str, Any]:
        return {"enum": self.rng.sample(["red", "blue", 1, 2.5, True, None, {"k": [1]}, "a\nb", "猫"], self.rng.randint(1, 4))}

    def const(self, depth: int) -> dict[str, Any]:
        return {"const": self.rng.choice(["x", 7, False, None, [1, "a"], {"z": 0}])}

    def types(self, depth: int) -> dict[str, Any]:
        kinds = self.rng.sample(["integer", "null", "boolean", "string"], 2)
        return {"type": kinds, "maximum": 99, "minimum": -99, "maxLength": 3}

    # -- with schemas inside

    def object(self, depth: int) -> dict[str, Any]:
        names = self.rng.sample(_NAMES, self.rng.randint(1, 4))
        required = [name for name in names if self.maybe(0.6)]
        made: dict[str, Any] = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        if required:
            made["required"] = self.rng.sample(required, len(required))
        way = self.rng.randrange(5)
        if way == 0:
            made |= {"additionalProperties": self.schema(1), "required": names, "maxProperties": len(names) + self.rng.randint(0, 2)}
        elif way == 1:
            made |= {"patternProperties": {"^p_[a-z]$": self.schema(1)}, "additionalProperties": False}
        elif way == 2:
            made |= {"additionalProperties": False, "required": names, "minProperties": len(names)}
        else:
            made["additionalProperties"] = False
        return made

    def array(self, depth: int) -> dict[str, Any]:
        least = self.rng.randint(0, 2)
        made: dict[str, Any] = {"type": "array", "items": self.schema(depth - 1), "maxItems": least + self.rng.randint(0, 2)}
        if self.maybe():
            made["minItems"] = least
        if self.maybe(0.4):
            made |= {"prefixItems": [self.schema(1) for _ in range(self.rng.randint(1, 2))], "items": self.rng.choice((False, self.schema(1))), "minItems": 1}
            made["maxItems"] = 3
        return made

    def any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.rng.randint(2, 3))]}

    def one_of(self, depth: int) -> dict[str, Any]:
        """Alternatives that differ in type, or in the value of one property."""
        if self.maybe():
            return {"oneOf": [self.string(1), self.integer(1), {"type": "null"}][: self.rng.randint(2, 3)]}
        return {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}, "v": self.schema(1)}, "required": ["kind", "v"], "additionalProperties": False}
                for kind in ("cat", "dog")
            ]
        }

    def all_of(self, depth: int) -> dict[str, Any]:
        if self.maybe():
            return {"allOf": [self.integer(1), {"minimum": -1000}, {"maximum": 1000}]}
        first = {"type": "object", "properties": {"a": self.schema(1)}, "required": ["a"]}
        second = {"properties": {"b": self.schema(1)}, "required": ["b"], "type": "object"}
        return {"allOf": [first, second], "additionalProperties": {"type": "null"}, "maxProperties": 4}

    def reference(self, depth: int) -> dict[str, Any]:
        name = f"d{len(self.defs)}~/%"
        self.defs[name] = {}
        self.defs[name] = self.schema(max(1, depth - 1))
        return {"$ref": f"#/$defs/d{name[1 : name.index('~')]}~0~1%25"}

    def tree(self, depth: int) -> dict[str, Any]:
        """A node with children of its own kind."""
        node = {"type": "object", "properties": {"v": self.integer(1), "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}}
        self.defs["node"] = {**node, "required": ["v"], "additionalProperties": False}
        return {"$ref": "#/$defs/node"}

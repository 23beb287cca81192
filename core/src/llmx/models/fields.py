"""Fields: typed reads of a config.json, with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llmx.errors import ModelError

__all__ = ["Fields"]


class Fields:
    """A configuration. A field that is null counts as absent."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value, or default when it is absent or null."""
        value = self.config.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, low: int = 1) -> int:
        """A whole number of at least `low`. Raises ModelError when it is absent without a default, or something else."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ModelError(f"config field {name!r} is {value!r}; a whole number of at least {low} is needed")
        return value

    def number(self, name: str, default: float | None = None, above: float = -math.inf) -> float:
        """A finite number greater than `above`. Raises ModelError when it is absent without a default, or something else."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < math.inf:
            raise ModelError(f"config field {name!r} is {value!r}; a number{f' above {above:g}' if above > -math.inf else ''} is needed")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"config field {name!r} is {value!r}; true or false is needed")
        return value

    def choice(self, name: str, table: Mapping[str, str], default: str | None = None) -> str:
        """The entry of `table` that the field names. Raises ModelError listing the known values."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in table:
            raise ModelError(f"config field {name!r} is {value!r}; known: {', '.join(sorted(table))}")
        return table[value]

    def per_layer(self, name: str, layers: int) -> Sequence[Any] | None:
        """A list with one entry per layer, or None when absent. Raises ModelError when its length is another."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) < layers:
            raise ModelError(f"config field {name!r} is {value!r}; a list of {layers} entries (num_hidden_layers) is needed")
        return value

    def refuse(self, name: str, *values: Any, why: str) -> None:
        """Raises ModelError when the field has one of these values."""
        if any(self.config.get(name) == value and self.config.get(name) is not None for value in values):
            raise ModelError(f"config field {name!r} is {self.config[name]!r}: {why}")

"""Compiled: everything that an executor runs, compiled ahead by name and sizes; nothing else ever compiles, and each compilation is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

__all__ = ["Compiled", "buckets", "shape_of"]


def buckets(smallest: int, largest: int) -> tuple[int, ...]:
    """Sizes that steps are padded to: from `smallest` on four times as much each, the last one `largest`."""
    sizes = [min(smallest, largest)]
    while sizes[-1] < largest:
        sizes.append(min(sizes[-1] * 4, largest))
    return tuple(sizes)


def shape_of(tree: Any) -> Any:
    """A pytree of arrays as what jax.jit lowers for: shapes, types and, of arrays on devices, their layout."""

    def one(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))

    return jax.tree.map(one, tree)


@dataclass(slots=True)
class Compiled:
    """Programs by key. compiles: how many were compiled; while_serving: of these after `ready`, which a user would have waited for."""

    table: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    compiles: int = 0
    while_serving: int = 0
    ready: bool = False

    def run(self, key: tuple[Any, ...], function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = (), wide: bool = False) -> Any:
        """function(*args) by the program of `key`, compiled now if it is not there.

        donate: numbers of arguments whose buffers the results may take. wide: 64-bit types exist in it.
        """
        if key not in self.table:
            with jax.enable_x64(wide):
                self.table[key] = jax.jit(function, donate_argnums=donate).lower(*shape_of(args)).compile()
            self.compiles += 1
            self.while_serving += self.ready
        return self.table[key](*args)

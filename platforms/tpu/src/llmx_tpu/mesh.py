"""Mesh: the devices of an engine, and how weights and pages lie on them. XLA puts the collectives where the layout asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from llmx.program.ops import Part

__all__ = ["Mesh"]

_AXIS = "model"


class Mesh:
    """One axis of devices. Of one device everything is simply there; of more, what divides evenly is cut, and the rest is on each."""

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self._mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,))
        self.devices = tuple(devices)
        self.size = len(devices)

    def sharding(self, *spec: str | None) -> NamedSharding:
        """The layout with these axes cut; none: the same on every device."""
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    def place(self, array: np.ndarray, sharding: NamedSharding | None = None) -> jax.Array:
        """The array on the devices; on each of them unless `sharding` says otherwise."""
        return jax.device_put(array, sharding or self.sharding())

    def zeros(self, shape: tuple[int, ...], dtype: Any, *, heads: bool) -> jax.Array:
        """Zeros; pages [blocks, tokens, heads, size] are cut by heads."""
        cut = heads and shape[2] % self.size == 0
        sharding = self.sharding(None, None, _AXIS) if cut else self.sharding()
        return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)()

    def weight(self, part: Part, shape: tuple[int, ...]) -> NamedSharding:
        """A matrix is cut by its rows where the model says that it may be, else by its columns: whichever divides evenly."""
        if part.split is None or len(shape) != 2 or self.size == 1:
            return self.sharding()
        if shape[0] % self.size == 0:
            return self.sharding(_AXIS, None)
        return self.sharding(None, _AXIS) if shape[1] % self.size == 0 else self.sharding()

    def experts(self, shape: tuple[int, ...]) -> NamedSharding:
        """A stack of experts is cut by experts."""
        return self.sharding(_AXIS) if self.size > 1 and shape[0] % self.size == 0 else self.sharding()

"""OwnTensors: the checkpoint of a drafter that is no model of its own: a config.json and safetensors with published names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmx.config import EngineConfig
from llmx.draft.settings import text
from llmx.errors import ConfigError, ModelError
from llmx.program.ops import Model, QuantKey, WeightRef
from llmx.weights.host_tensor import HostTensor
from llmx.weights.sources import open_checkpoint

if TYPE_CHECKING:
    import numpy as np

__all__ = ["OWN", "OwnTensors", "check_heads"]

OWN = "draft/"  # before the names of a drafter's tensors in the joined model
_UNUSED = (".rotary_emb.inv_freq",)
_LISTED = 5
_EDGE_BYTES = 4096  # of each end of a tensor, read for the digest


class OwnTensors:
    """A WeightSource: the tensors under their published names, without the `prefix` that some files have before them.

    settings: model and revision, as for the model itself. Raises ConfigError without a model, ModelError for files that cannot be read.
    """

    def __init__(self, settings: Mapping[str, Any], config: EngineConfig, method: str, prefix: str = "model.") -> None:
        source = text(settings, "model")
        if source is None:
            raise ConfigError(f"speculative_config: model is missing: name the folder of the {method} checkpoint", field="speculative_config")
        found = open_checkpoint(source, revision=text(settings, "revision"), download_dir=config.model.download_dir)
        self.path, self.config, self._source = found.path, found.config, found.weights
        self._stored = {name.removeprefix(prefix): name for name in found.weights.names()}
        self._ignored: set[str] = set()
        self._made: dict[str, HostTensor] = {}

    def names(self) -> Iterable[str]:
        """All names."""
        return list(self._stored)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._stored

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored. Raises ModelError for a tensor that is not there."""
        if name.removeprefix(OWN) in self._made:
            return self._made[name.removeprefix(OWN)].shape
        return self._source.shape(self._name(name))

    def quant(self, name: str) -> QuantKey:
        """As stored. Raises ModelError for a tensor that is not there."""
        if name.removeprefix(OWN) in self._made:
            return QuantKey("dense", (("data", "f32", 1),))
        return self._source.quant(self._name(name))

    def get(self, ref: WeightRef) -> HostTensor:
        """The tensor with its transforms. Raises ModelError."""
        if ref.name.removeprefix(OWN) in self._made:
            return self._made[ref.name.removeprefix(OWN)]
        return self._source.get(replace(ref, name=self._name(ref.name)))

    def close(self) -> None:
        """Unmap."""
        self._source.close()

    def ignore(self, *names: str) -> None:
        """These need not be used."""
        self._ignored.update(names)

    def integers(self, name: str) -> np.ndarray:
        """i64 [n]: the values of a tensor of whole numbers, in its order, whatever its shape. Raises ModelError for another one."""
        import numpy as np

        raw = self._source.raw(self._name(name))
        kinds = {"i64": np.int64, "i32": np.int32}
        if raw.dtype not in kinds:
            raise ModelError(f"tensor {name!r} is stored as {raw.dtype}: it must be {' or '.join(kinds)}", path=self.path)
        found: np.ndarray = np.ascontiguousarray(raw.data).reshape(-1).view(kinds[raw.dtype]).astype(np.int64)
        return found

    def add(self, name: str, values: np.ndarray) -> None:
        """A tensor that is no tensor of the file, as float32 [n]: what the Programs read in place of one that is stored otherwise."""
        import numpy as np

        data = np.ascontiguousarray(values, np.float32)
        self._made[name] = HostTensor("f32", data.shape, data.view(np.uint8).reshape(1, -1))

    def check(self, model: Model) -> str:
        """A digest of what the Programs use of it. Raises ModelError for a tensor of another shape, and for what has no place."""
        used = {ref.name.removeprefix(OWN): ref for ref in model.weights().values() if ref.name.startswith(OWN)}
        digest = hashlib.sha256()
        for name, ref in sorted(used.items()):
            shape = self.shape(name)
            if shape != ref.shape and not ref.transforms:
                raise ModelError(f"tensor {name!r} is {list(shape)}, but the configuration asks for {list(ref.shape)}", path=self.path)
            raw = self._made[name] if name in self._made else self._source.raw(self._name(name))
            flat = raw.data.reshape(-1)
            digest.update(f"{name} {raw.dtype} {raw.shape}\n".encode())
            digest.update(flat[:_EDGE_BYTES].tobytes() + flat[-_EDGE_BYTES:].tobytes())
        left = sorted(name for name in self._stored if name not in used and name not in self._ignored and not name.endswith(_UNUSED))
        if left:
            more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
            raise ModelError(f"{len(left)} tensors have no place in such a drafter: {', '.join(left[:_LISTED])}{more}", path=self.path)
        return digest.hexdigest()

    def _name(self, name: str) -> str:
        name = name.removeprefix(OWN)
        if name not in self._stored:
            raise ModelError(f"tensor {name!r} is missing: the drafter needs it", path=self.path)
        return self._stored[name]


def check_heads(config: EngineConfig, own: OwnTensors, heads: int) -> None:
    """Raise ConfigError where more tokens are asked for than there are heads, each of which guesses one."""
    asked = config.draft.num_tokens or dict(config.draft.settings).get("num_speculative_tokens")
    if isinstance(asked, int) and asked > heads:
        why = f"speculative_config: num_speculative_tokens is {asked}, but {own.path} has {heads} heads: give 1 to {heads}"
        raise ConfigError(why, field="speculative_config")

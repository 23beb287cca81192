"""What the checkpoint of an EAGLE head says of its layers, and which tensors it shares with the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmx.draft.own import OwnTensors
from llmx.errors import ModelError
from llmx.models.decoder import DecoderConfig, read_decoder
from llmx.program.ops import WeightRef

if TYPE_CHECKING:
    from llmx.models.load import LoadedModel

__all__ = ["own_or_shared", "read_head"]


def read_head(own: OwnTensors, first: str = "layers.0") -> DecoderConfig:
    """What config.json says of the layers. first: module of the first one, whose biases count. Raises ModelError."""
    try:
        biases = {f"{name}_bias": own.has(f"{first}.self_attn.{name[0]}_proj.bias") for name in ("qkv", "o")}
        return replace(read_decoder(own.config), **biases)  # type: ignore[arg-type]  # they are flags
    except ModelError as error:
        raise error if error.path else ModelError(str(error), path=own.path) from error


def own_or_shared(own: OwnTensors, name: str, loaded: LoadedModel, theirs: str) -> bool:
    """Whether the checkpoint has a tensor of its own that is not the model's, byte by byte."""
    if not own.has(name):
        return False
    refs = [ref for ref in loaded.bundle.model.weights().values() if ref.name == theirs and not ref.transforms]
    if refs and refs[0].quant == own.quant(name) and refs[0].shape == own.shape(name):
        mine = own.get(WeightRef(name, refs[0].shape, refs[0].quant))
        if (loaded.bundle.weights.get(refs[0]).data == mine.data).all():
            own.ignore(name)
            return False
    return True

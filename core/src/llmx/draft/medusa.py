"""MedusaDrafter: heads on the row that the model's own head read last, each for a token further ahead. It has no pages.

Source: Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (2024).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmx.config import EngineConfig
from llmx.draft.device import DeviceProposer
from llmx.draft.joined import add_drafter
from llmx.draft.own import OWN, OwnTensors, check_heads
from llmx.draft.settings import whole_number
from llmx.draft.target import Target
from llmx.errors import ModelError
from llmx.executor.draft_shape import DRAFT, HIDDEN
from llmx.models.load import LoadedModel
from llmx.models.registry import ModelRegistry
from llmx.program.builder import ModelBuilder, ProgramBuilder, R, T, part

__all__ = ["MedusaDrafter"]


class MedusaDrafter:
    """settings: model (folder or name on the hub of the checkpoint; it must be given), revision (branch, tag or commit of a hub model),
    draft_tensor_parallel_size (1 or left out). Raises ConfigError for values that cannot be.

    All guesses are made in one run. Names of tensors as Medusa's own files have them, or as vLLM's.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        whole_number(settings, "draft_tensor_parallel_size", 1, 1)

    def join(self, loaded: LoadedModel, config: EngineConfig, registry: ModelRegistry) -> LoadedModel:
        """The model with the heads beside it. Raises ModelError for files that are wrong, ConfigError for more guesses than there are heads."""
        target, own = Target.of(loaded), OwnTensors(self._settings, config, "Medusa", "medusa_head.")
        model = ModelBuilder(own.quant)
        heads = _write(model.program(DRAFT), target, own)
        check_heads(config, own, heads)
        return add_drafter(loaded, target.keeping(loaded.bundle.model), model.build(), own)

    def begin(self, tokens: Sequence[int], *, private: bool) -> DeviceProposer:
        """Nothing is kept for a request."""
        return DeviceProposer(tokens)


def _write(b: ProgramBuilder, target: Target, own: OwnTensors) -> int:
    """The heads; gives how many there are."""
    block, linear = "{}.{}.linear", "{}.{}.weight"
    if own.has("lm_heads.0.weight"):
        block, linear = "blocks.{}.layers.{}", "lm_heads.{}.weight"
    found = re.compile(re.escape(linear).replace(r"\{\}", r"(\d+)", 1).replace(r"\{\}", r"\d+"))
    heads = 1 + max((int(match[1]) for name in own.names() if (match := found.fullmatch(name))), default=-1)
    if not heads:
        raise ModelError(f"no head is there: a tensor {linear.format(0, 1)!r} is needed", path=own.path)
    rows = b.rows(b.input(HIDDEN, (T, target.hidden), "act"), b.input("head", (R,)))
    for head in range(heads):
        x, layer = rows, 0
        while own.has(f"{block.format(head, layer)}.weight"):
            name = block.format(head, layer)
            x = b.add(x, b.act(b.linear(x, part(f"{OWN}{name}", target.hidden, bias=own.has(f"{name}.bias"))), "silu"))
            layer += 1
        name = linear.format(head, layer).removesuffix(".weight")
        b.output("logits" + (f".{head}" if head else ""), b.linear(x, part(f"{OWN}{name}", target.vocab, "vocab")))
    return heads

"""EagleDrafter: a small decoder that reads the model's own rows and so guesses the next ones.

Source: Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024). At position p it reads the row that the model's head reads at p
and the embedding of the token behind it; what it gives stands for the model's row at p + 1, to which the model's own head is put.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmx.config import EngineConfig
from llmx.draft.device import DeviceProposer
from llmx.draft.head_config import own_or_shared, read_head
from llmx.draft.joined import add_drafter
from llmx.draft.own import OWN, OwnTensors
from llmx.draft.settings import whole_number
from llmx.draft.target import Target
from llmx.errors import ConfigError
from llmx.executor.draft_shape import DRAFT, HIDDEN
from llmx.models.decoder import DecoderConfig, attention_block, mlp_block
from llmx.models.load import LoadedModel
from llmx.models.registry import ModelRegistry, TensorLayout
from llmx.program.builder import ModelBuilder, ProgramBuilder, R, T, part
from llmx.program.ops import Value

__all__ = ["EagleDrafter"]


class EagleDrafter:
    """settings: model (folder or name on the hub of the checkpoint; it must be given), revision (branch, tag or commit of a hub model),
    draft_tensor_parallel_size (1 or left out). Raises ConfigError for values that cannot be.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        whole_number(settings, "draft_tensor_parallel_size", 1, 1)

    def join(self, loaded: LoadedModel, config: EngineConfig, registry: ModelRegistry) -> LoadedModel:
        """The model with the head beside it. Raises ModelError for files that are wrong, ConfigError where the two do not fit."""
        target, own = Target.of(loaded), OwnTensors(self._settings, config, "EAGLE")
        c = read_head(own)
        if (c.hidden, c.vocab) != (target.hidden, target.vocab):
            theirs, ours = f"hidden_size {c.hidden} and vocab_size {c.vocab}", f"{target.hidden} and {target.vocab}"
            raise ConfigError(
                f"speculative_config: {own.path} has {theirs}, {target.name} has {ours}: an EAGLE head belongs to one model: take the one made for it",
                field="speculative_config",
            )
        model = ModelBuilder(lambda name: own.quant(name))
        b = model.program(DRAFT)
        _write(b, c, target, own, loaded)
        return add_drafter(loaded, target.keeping(loaded.bundle.model), model.build(), own)

    def begin(self, tokens: Sequence[int], *, private: bool) -> DeviceProposer:
        """Every request has its own pages."""
        return DeviceProposer(tokens)


def _write(b: ProgramBuilder, c: DecoderConfig, target: Target, own: OwnTensors, loaded: LoadedModel) -> None:
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    hidden = b.input(HIDDEN, (T, target.hidden), "act")
    if own_or_shared(own, "embed_tokens.weight", loaded, "model.embed_tokens.weight"):
        embedded = b.embed(ids, f"{OWN}embed_tokens", c.vocab, c.hidden)
    else:
        embedded = target.embed(b, ids)
    x = b.linear(b.concat(embedded, hidden), part(f"{OWN}fc", c.hidden, bias=own.has("fc.bias")))
    x = _layers(b, x, positions, c, own)
    rows = b.rows(x, head)
    b.output(HIDDEN, rows)
    if own_or_shared(own, "lm_head.weight", loaded, "lm_head.weight"):
        b.output("logits", b.linear(rows, part(f"{OWN}lm_head", c.vocab, "vocab")))
    else:
        b.output("logits", target.head(b, rows))


def _layers(b: ProgramBuilder, x: Value, positions: Value, c: DecoderConfig, own: OwnTensors) -> Value:
    """Plain layers; the first one reads what `fc` gives as it is."""
    for layer in range(c.layers):
        name, first = f"{OWN}layers.{layer}", f"layers.{layer}.input_layernorm"
        with b.region(DRAFT, layer, "attn"):
            y = b.norm(x, f"{OWN}{first}", c.eps) if layer or own.has(f"{first}.weight") else x
            x = b.add(x, attention_block(b, y, positions, c, layer, f"{name}.self_attn", TensorLayout(), f"{DRAFT}.layers.{layer}.attn"))
        with b.region(DRAFT, layer, "mlp"):
            x = b.add(x, mlp_block(b, b.norm(x, f"{name}.post_attention_layernorm", c.eps), c.ffn, c.act, f"{name}.mlp", c.mlp_bias))
    return x

"""Eagle3Drafter: a layer that reads rows of three of the model's layers, with a head of the most frequent tokens alone.

Source: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025). The product `fc`, which makes one
row of the three, belongs to the model's own Program here: it is computed once per token, and one row of the layer's width is kept instead of three of the
model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llmx.config import EngineConfig
from llmx.draft.device import DeviceProposer
from llmx.draft.head_config import own_or_shared, read_head
from llmx.draft.joined import add_drafter
from llmx.draft.own import OWN, OwnTensors
from llmx.draft.settings import whole_number
from llmx.draft.target import Target
from llmx.errors import ConfigError, ModelError
from llmx.executor.draft_shape import DRAFT, HIDDEN, KEPT
from llmx.models.decoder import DecoderConfig, attention_block, mlp_block
from llmx.models.load import LoadedModel
from llmx.models.registry import ModelRegistry, TensorLayout
from llmx.program.builder import ModelBuilder, ProgramBuilder, R, T, part

__all__ = ["Eagle3Drafter"]

_IDS = "d2t.ids"  # the ids themselves, where d2t has what must be added to a column's number


class Eagle3Drafter:
    """settings: model (folder or name on the hub of the checkpoint; it must be given), revision (branch, tag or commit of a hub model),
    draft_tensor_parallel_size (1 or left out). Raises ConfigError for values that cannot be.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        whole_number(settings, "draft_tensor_parallel_size", 1, 1)

    def join(self, loaded: LoadedModel, config: EngineConfig, registry: ModelRegistry) -> LoadedModel:
        """The model with the layer beside it. Raises ModelError for files that are wrong, ConfigError where the two do not fit."""
        target, own = Target.of(loaded), OwnTensors(self._settings, config, "EAGLE-3")
        name = "midlayer" if own.has("midlayer.hidden_norm.weight") else "layers.0"
        c = read_head(own, name)
        small = _columns(c, target, own)
        model = ModelBuilder(own.quant)
        b = model.resume(target.program)
        rows = b.concat(*(target.entering(layer) for layer in _taken(own, target)))
        b.output(KEPT, b.linear(rows, part(f"{OWN}fc", c.hidden, bias=own.has("fc.bias"))))
        _write(model.program(DRAFT), c, small, name, target, own, loaded)
        own.ignore("t2d", "d2t")
        return add_drafter(loaded, loaded.bundle.model, model.build(), own)

    def begin(self, tokens: Sequence[int], *, private: bool) -> DeviceProposer:
        """Every request has its own pages."""
        return DeviceProposer(tokens)


def _columns(c: DecoderConfig, target: Target, own: OwnTensors) -> int:
    """Columns of its head, whose ids are then a tensor of `own`. Raises ConfigError, ModelError where the checkpoint is not for this model."""
    own_embed = own.has("embed_tokens.weight")
    if c.vocab != target.vocab or (c.hidden != target.embed_width and not own_embed):
        theirs, ours = f"hidden_size {c.hidden} and vocab_size {c.vocab}", f"{target.embed_width} and {target.vocab}"
        why = f"{own.path} has {theirs}, {target.name} has {ours}: an EAGLE-3 drafter belongs to one model: take the one made for it"
        raise ConfigError(f"speculative_config: {why}", field="speculative_config")
    if c.layers != 1:
        raise ModelError(f"num_hidden_layers is {c.layers} in config.json: EAGLE-3 drafters of one layer are read", path=own.path)
    small = own.config.get("draft_vocab_size") or c.vocab
    if isinstance(small, bool) or not isinstance(small, int) or not 1 <= small <= c.vocab:
        raise ModelError(f"draft_vocab_size is {small!r} in config.json: it must be 1 to {c.vocab}", path=own.path)
    if own.has("d2t"):
        import numpy as np

        if own.shape("d2t") != (small,):
            raise ModelError(f"d2t has shape {list(own.shape('d2t'))}: it must have {small} entries, as draft_vocab_size says", path=own.path)
        ids = own.integers("d2t") + np.arange(small)
        if ids.min() < 0 or ids.max() >= c.vocab:
            raise ModelError(f"d2t has {len(ids)} entries from {ids.min()} to {ids.max()}: it must have {small}, from 0 to {c.vocab - 1}", path=own.path)
        own.add(_IDS, ids)
    elif small != c.vocab:
        raise ModelError(f"draft_vocab_size is {small} of {c.vocab} ids, but tensor 'd2t', which says of which, is missing", path=own.path)
    return small


def _taken(own: OwnTensors, target: Target) -> list[int]:
    """The layers before which a row is read. Raises ModelError."""
    said = own.config.get("eagle_config")
    nested = said.get("eagle_aux_hidden_state_layer_ids") if isinstance(said, Mapping) else None
    taken = own.config.get("eagle_aux_hidden_state_layer_ids") or nested or [2, target.layers // 2, target.layers - 3]
    if not isinstance(taken, list) or len(taken) < 2 or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in taken):
        raise ModelError(f"eagle_aux_hidden_state_layer_ids is {taken!r}: it must be a list of layers (two at least)", path=own.path)
    return taken


def _write(b: ProgramBuilder, c: DecoderConfig, small: int, name: str, target: Target, own: OwnTensors, loaded: LoadedModel) -> None:
    """The layer reads the token beside the row, each with a norm of its own; the row before the last norm is what its next run reads."""
    ids, positions, head = b.input("ids"), b.input("positions"), b.input("head", (R,))
    hidden, c = b.input(HIDDEN, (T, c.hidden), "act"), replace(c, windows=(None,))
    if own_or_shared(own, "embed_tokens.weight", loaded, "model.embed_tokens.weight"):
        embedded = b.embed(ids, f"{OWN}embed_tokens", c.vocab, c.hidden)
    else:
        embedded = target.embed(b, ids)
    module = f"{OWN}{name}"
    with b.region(DRAFT, 0, "attn"):
        normed = b.norm(hidden, f"{module}.hidden_norm", c.eps)
        rows = b.concat(b.norm(embedded, f"{module}.input_layernorm", c.eps), normed)
        mixed = attention_block(b, rows, positions, c, 0, f"{module}.self_attn", TensorLayout(), f"{DRAFT}.layers.0.attn")
        x = b.add(normed if own.config.get("norm_before_residual") is True else hidden, mixed)
    with b.region(DRAFT, 0, "mlp"):
        x = b.add(x, mlp_block(b, b.norm(x, f"{module}.post_attention_layernorm", c.eps), c.ffn, c.act, f"{module}.mlp", c.mlp_bias))
    last = b.rows(x, head)
    b.output(HIDDEN, last)
    normed = b.norm(last, f"{OWN}norm", c.eps)
    if own_or_shared(own, "lm_head.weight", loaded, "lm_head.weight") or small != c.vocab:
        logits = b.linear(normed, part(f"{OWN}lm_head", small, "vocab"))
    else:
        logits = target.head(b, normed)
    b.output("logits", logits, ids=b.tensor(f"{OWN}{_IDS}", small) if own.has("d2t") else None)

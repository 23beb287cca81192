"""Adapters: what they change, for whose rows, and that a slot is filled and emptied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.executor import AdapterPart, Control, LoraPart, ModelBundle, WholePart
from llmx.testing.conformance.common import PROMPT, TOKENS, VOCAB, last_logits, needs_late, raises
from llmx.testing.conformance.outcome import NotRun
from llmx.testing.driver import Driver
from llmx.testing.tiny_models import bundle_from, stored, tensors_of, tiny_llama

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["CHECKS"]

_SCALE = 0.5
_TABLE = "model.embed_tokens"
_WHOLE = (_TABLE, "lm_head", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj")


def _bundle() -> ModelBundle:
    return tiny_llama(tie_word_embeddings=False, max_position_embeddings=TOKENS)


def _adapter(bundle: ModelBundle, seed: int, rank: int, dora: bool = False) -> dict[str, LoraPart]:
    """Random matrices for every linear."""
    rng, parts = np.random.default_rng(seed), dict[str, LoraPart]()
    for part in bundle.model.programs["main"].parts():
        if part.target.endswith(("proj", "lm_head")):
            rows, columns = part.weight.shape
            a, b = (stored(rng.normal(0, 0.2, shape)) for shape in ((rank, columns), (rows, rank)))
            parts[part.target] = AdapterPart(a, b, _SCALE, rng.uniform(1.0, 2.0, rows).astype(np.float32) if dora else None)
    return parts


def _beyond(bundle: ModelBundle, seed: int) -> dict[str, LoraPart]:
    """A LoRA of the embedding and weights in the place of the model's, for two adapters: the second has the embedding whole."""
    rng, shapes = np.random.default_rng(seed), {part.target: part.weight.shape for part in bundle.model.programs["main"].parts()}
    parts: dict[str, LoraPart] = {name: WholePart(stored(rng.normal(0, 0.1, shapes[name]))) for name in (_WHOLE if seed % 2 else _WHOLE[1:])}
    if not seed % 2:
        vocab, width = shapes[_TABLE]
        parts[_TABLE] = AdapterPart(stored(rng.normal(0, 0.2, (5, vocab))), stored(rng.normal(0, 0.2, (width, 5))), _SCALE)
    return parts


def _merged(bundle: ModelBundle, parts: Mapping[str, LoraPart]) -> ModelBundle:
    """The model whose weights are what the adapter makes of them."""
    tensors = {name: values.astype(np.float32) for name, values in tensors_of(bundle).items()}
    for target, part in parts.items():
        name = f"{target}.weight"
        if isinstance(part, WholePart):
            tensors[name] = _values(part.weight)
            continue
        change = _values(part.b) @ _values(part.a)
        tensors[name] = tensors[name] + part.scale * (change.T if target == _TABLE else change)
        if part.magnitude is not None:
            tensors[name] *= (part.magnitude / np.linalg.norm(tensors[name], axis=1))[:, None]
    return bundle_from(bundle.model, tensors, VOCAB, TOKENS)


def _values(tensor: Any) -> np.ndarray:
    values: np.ndarray = tensor.data.view(np.float32).reshape(tensor.shape)
    return values


def _driver(subject: Subject, bundle: ModelBundle, feature: str = "lora") -> Driver:
    """A driver whose executor takes adapters. Raises NotRun where it takes none."""
    if not subject.computes:
        raise NotRun("no model")
    if not subject.has_feature("lora"):
        raise NotRun("no adapters")
    if not subject.has_feature(feature):
        raise NotRun("no adapted embeddings")
    config, _ = subject.configured(dtype=subject.config.model.dtype, enable_lora=True)
    driver = Driver(subject.executor(bundle, config=config))
    needs_late(driver)
    return driver


def _put(driver: Driver, slot: int, parts: Mapping[str, LoraPart]) -> None:
    reply = driver.executor.control(Control("lora_add", {"slot": slot, "parts": parts}))
    assert reply.ok, f"lora_add: {reply.error}"


def _equals_merged(subject: Subject, parts: Mapping[str, LoraPart], bundle: ModelBundle, feature: str = "lora") -> None:
    driver = _driver(subject, bundle, feature)
    _put(driver, 1, parts)
    plain = last_logits(driver, 0, PROMPT)
    found = last_logits(driver, 0, PROMPT, lora=1)
    wanted = last_logits(subject.driver(_merged(bundle, parts)), 0, PROMPT)
    subject.near(found, wanted, "logits of an adapter, beside those of merged weights")
    assert np.abs(plain - wanted).max() > 10 * subject.tolerance, "the base has the logits of the adapter"


def an_adapter_equals_merged_weights(subject: Subject) -> None:
    """Logits with an adapter of every linear are those of weights with it merged in."""
    bundle = _bundle()
    _equals_merged(subject, _adapter(bundle, 1, 4), bundle)


def lengths_of_rows_equal_merged_weights(subject: Subject) -> None:
    """DoRA."""
    bundle = _bundle()
    _equals_merged(subject, _adapter(bundle, 2, 3, dora=True), bundle)


def an_adapted_embedding_equals_merged_weights(subject: Subject) -> None:
    """A LoRA of the embedding, beside whole linears and a whole head."""
    bundle = _bundle()
    _equals_merged(subject, _beyond(bundle, 2), bundle, "lora.embeddings")


def whole_modules_equal_merged_weights(subject: Subject) -> None:
    """Embedding, head and linears of an MLP with weights of their own."""
    bundle = _bundle()
    _equals_merged(subject, {**_adapter(bundle, 4, 4), **_beyond(bundle, 3)}, bundle, "lora.embeddings")


def adapters_mix_in_one_step(subject: Subject) -> None:
    """Requests with two adapters and with none, in prompts of several chunks and in decode steps: each gets what it gets alone."""
    bundle = _bundle()
    driver = _driver(subject, bundle)
    _put(driver, 0, _adapter(bundle, 5, 4))
    _put(driver, 2, _adapter(bundle, 6, 7, dora=True))
    prompts, lora = {0: PROMPT, 1: PROMPT[:9], 2: PROMPT, 3: PROMPT[5:30], 4: PROMPT}, {0: 0, 1: 2, 3: 0, 4: 2}
    alone = {slot: driver.generate({slot: prompt}, 4, lora=lora)[slot] for slot, prompt in prompts.items()}
    together = driver.generate(prompts, 4, chunk=11, lora=lora)
    for slot, steps in alone.items():
        assert [token for token, _ in together[slot]] == [token for token, _ in steps], f"other tokens in slot {slot} beside others than alone"
        for (_, found), (_, wanted) in zip(together[slot], steps, strict=True):
            subject.same(np.array(found), np.array(wanted), f"logprobs in slot {slot} beside others")
    assert len({str([token for token, _ in alone[slot]]) for slot in (0, 2, 4)}) == 3, "two adapters and none give the same tokens"


def a_slot_is_filled_again(subject: Subject) -> None:
    """What a slot held before leaves nothing behind, though the second adapter has fewer modules."""
    bundle = _bundle()
    driver = _driver(subject, bundle)
    few = {target: part for target, part in _adapter(bundle, 8, 4).items() if target.endswith("q_proj")}
    _put(driver, 1, few)
    wanted = last_logits(driver, 0, PROMPT, lora=1)
    _put(driver, 1, _adapter(bundle, 7, 4))
    assert np.abs(last_logits(driver, 0, PROMPT, lora=1) - wanted).max() > 10 * subject.tolerance, "lora_add did not replace what the slot had"
    _put(driver, 1, few)
    subject.same(last_logits(driver, 0, PROMPT, lora=1), wanted, "logits of an adapter in a slot that held another")


def an_empty_slot_is_an_error(subject: Subject) -> None:
    """A step whose request uses a slot that holds no adapter, or holds none any more."""
    bundle = _bundle()
    driver = _driver(subject, bundle)
    _put(driver, 0, _adapter(bundle, 9, 4))
    assert driver.executor.control(Control("lora_remove", {"slot": 0})).ok, "lora_remove was refused"
    raises(lambda: last_logits(driver, 0, PROMPT, lora=0), "adapter")


CHECKS = (
    an_adapter_equals_merged_weights, lengths_of_rows_equal_merged_weights, an_adapted_embedding_equals_merged_weights,
    whole_modules_equal_merged_weights, adapters_mix_in_one_step, a_slot_is_filled_again, an_empty_slot_is_an_error,
)  # fmt: skip

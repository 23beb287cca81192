"""DraftModel: a smaller model guesses what the model will say.

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); here its most likely token is the guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmx.config import EngineConfig, ModelConfig
from llmx.draft.device import DeviceProposer
from llmx.draft.joined import joined
from llmx.draft.settings import text, whole_number
from llmx.draft.vocabulary import Translation, translated
from llmx.errors import ConfigError
from llmx.models.load import LoadedModel, ModelSummary, load_model
from llmx.models.registry import ModelRegistry
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["DraftModel", "ParallelDraftModel"]

_KINDS = ("full", "sliding")  # what its pages may be: rejected guesses leave nothing behind in these
_SHARED = 0.05  # of the target's tokens, at least: a draft model with fewer says almost nothing that the target could say


class DraftModel:
    """settings: model (folder, .gguf file or name on the hub; it must be given), revision and quantization (as for the model itself),
    draft_tensor_parallel_size (1 or left out), parallel_drafting (true: as ParallelDraftModel). Raises ConfigError for values that cannot be.
    """

    _masked = False  # whether all guesses are made in one run, whatever the settings say

    def __init__(self, settings: Mapping[str, Any]) -> None:
        model = text(settings, "model")
        if model is None:
            raise _error("model is missing: name the draft model, a smaller one: a folder, a .gguf file or org/name")
        whole_number(settings, "draft_tensor_parallel_size", 1, 1)
        parallel = settings.get("parallel_drafting", False)
        if not isinstance(parallel, bool):
            raise _error(f"parallel_drafting is {parallel!r}: it must be true or false")
        self._parallel = self._masked or parallel
        self._model, self._revision, self._quantization = model, text(settings, "revision"), text(settings, "quantization")

    def join(self, loaded: LoadedModel, config: EngineConfig, registry: ModelRegistry) -> LoadedModel:
        """The model with the draft model beside it. Raises ModelError for files that are wrong, ConfigError where the two do not fit."""
        kept = config.model
        wanted = ModelConfig(
            source=self._model, revision=self._revision, quantization=self._quantization, dtype=kept.dtype,
            download_dir=kept.download_dir, offline=kept.offline, hf_token=kept.hf_token, cache_dir=kept.cache_dir, runner="generate",
        )  # fmt: skip
        draft = load_model(wanted, registry)
        other = _translation(loaded.summary, draft.summary)
        if other is not None and self._parallel:
            raise _error(f"{draft.summary.name} has another vocabulary than {loaded.summary.name}: parallel drafting needs the same, take method draft_model")
        for state in draft.bundle.model.states.values():
            if state.spec.kind not in _KINDS:
                why = f"{draft.summary.name} keeps {state.spec.kind} states, which guesses would spoil"
                raise _error(f"{why}: take a model of {' and '.join(_KINDS)} attention")
        warnings = [*loaded.warnings, *(f"draft model: {warning}" for warning in draft.warnings)]
        if draft.summary.context_length < loaded.summary.max_model_len:
            warnings.append(f"draft model: {draft.summary.name} was made for {draft.summary.context_length} tokens: behind them it will guess badly")
        if other is not None:
            shown = f"it has {other.exact} of the {other.texts} tokens of {loaded.summary.name}"
            warnings.append(f"draft model: {draft.summary.name} has another vocabulary: {shown}, the others are translated in part")
        bundle = joined(loaded.bundle, draft.bundle if other is None else translated(draft.bundle, other))
        return replace(loaded, bundle=replace(bundle, draft_mask=_mask_of(draft) if self._parallel else -1), warnings=tuple(warnings))

    def begin(self, tokens: Sequence[int], *, private: bool) -> DeviceProposer:
        """Every request has its own pages."""
        return DeviceProposer(tokens)


class ParallelDraftModel(DraftModel):
    """PARD: a draft model that was trained to guess all tokens in one run; a token of its own stands for those that are not known yet.

    Source: An et al., "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation" (2025).
    """

    _masked = True


def _mask_of(draft: LoadedModel) -> int:
    """The token that stands for one that is not known yet."""
    for name in ("pard_token", "ptd_token_id"):
        token = draft.hf_config.get(name)
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < draft.summary.vocab_size:
            return token
        if token is not None:
            raise _error(f"{draft.summary.name} has {name} {token!r} in its config.json: it must be one of its {draft.summary.vocab_size} ids")
    raise _error(f"{draft.summary.name} was not trained for parallel drafting: its config.json has no pard_token: take method draft_model without it")


def _translation(target: ModelSummary, draft: ModelSummary) -> Translation | None:
    """None: the vocabularies are the same, id by id. Raises ConfigError where they share less than a twentieth of the target's tokens."""
    same = draft.tokenizer.path == target.tokenizer.path or _same_file(draft.tokenizer.path, target.tokenizer.path)
    if same and draft.vocab_size == target.vocab_size:
        return None
    one, two = Tokenizer.load(target.tokenizer), Tokenizer.load(draft.tokenizer)
    if draft.vocab_size == target.vocab_size and all(one.token_bytes(token) == two.token_bytes(token) for token in range(target.vocab_size)):
        return None
    found = Translation.of(one, target.vocab_size, two, draft.vocab_size)
    if found.exact < _SHARED * found.texts:
        shown = f"{draft.name} has {found.exact} of the {found.texts} tokens of {target.name}, less than {_SHARED:.0%}"
        raise _error(f"{shown}: its guesses would nearly all be wrong: take a draft model of a closer vocabulary, or method suffix")
    return found


def _same_file(one: str, other: str) -> bool:
    """Whether two folders have the same tokenizer.json."""
    files = [Path(path) / "tokenizer.json" for path in (one, other)]
    return all(file.is_file() for file in files) and files[0].read_bytes() == files[1].read_bytes()


def _error(why: str) -> ConfigError:
    return ConfigError(f"speculative_config: {why}", field="speculative_config")

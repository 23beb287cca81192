"""adapter_config.json of PEFT: what of it changes the arithmetic, and what cannot be served."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from llmx.errors import ModelError
from llmx.lora.pattern import NamePattern
from llmx.record import record
from llmx.weights.json_file import read_json_object

__all__ = ["CONFIG_NAME", "AdapterSettings", "read_settings"]

CONFIG_NAME = "adapter_config.json"
_MERGE = "merge it into the model's weights (peft: merge_and_unload) and serve the result"
# field -> why an adapter that sets it is refused; absent, null, false and empty are fine
_REFUSED: Mapping[str, str] = {
    "lora_bias": "biases of adapters are not served: train with lora_bias=False",
    "layer_replication": f"layers are not copied for an adapter: {_MERGE}",
    "alora_invocation_tokens": "adapters that begin inside a prompt (aLoRA) are not served: train a plain LoRA",
    "use_qalora": "QALoRA is not served: train with use_qalora=False",
    "use_bdlora": "BD-LoRA is not served: train a plain LoRA",
    "arrow_config": "Arrow is not served: train a plain LoRA",
    "target_parameters": f"parameters outside linear modules are not served: {_MERGE}",
    "trainable_token_indices": f"trained tokens are not served: {_MERGE}",
    "corda_config": "CorDA changes the base weights: convert it to a plain LoRA when saving",
}
_BRANCHING = 64  # keys of a rank_pattern or alpha_pattern that are more than a name: each may take a tenth of a second
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # ways to begin that move part of the base weights into the adapter


@record
class AdapterSettings:
    """Rank and strength of each module's adapter. ranks, alphas: patterns and the values of modules that they match; the first one counts."""

    rank: int
    alpha: float
    rslora: bool = False
    dora: bool = False
    ranks: tuple[tuple[NamePattern, Any], ...] = ()
    alphas: tuple[tuple[NamePattern, Any], ...] = ()
    base: str = ""  # base_model_name_or_path
    path: str = CONFIG_NAME
    whole: tuple[str, ...] = ()  # modules_to_save: ends of the names of modules that come with a weight of their own

    def rank_of(self, module: str) -> int:
        """The rank of a module's adapter. Raises ModelError for a pattern that takes too long; so does scale_of."""
        return int(self._matching("rank_pattern", self.ranks, module, self.rank))

    def saves(self, module: str) -> bool:
        """Whether modules_to_save names a module."""
        return any(self.ends(module, one) for one in self.whole)

    @staticmethod
    def ends(module: str, name: str) -> bool:
        """Whether `name` is the module's, or its end behind a dot."""
        return module == name or module.endswith(f".{name}")

    def scale_of(self, module: str) -> float:
        """What B (A x) is multiplied by."""
        rank, alpha = self.rank_of(module), float(self._matching("alpha_pattern", self.alphas, module, self.alpha))
        return alpha / rank**0.5 if self.rslora else alpha / rank

    def _matching(self, field: str, patterns: tuple[tuple[NamePattern, Any], ...], module: str, otherwise: Any) -> Any:
        """The value of the first pattern that is the module's name, or its end behind a dot."""
        for pattern, value in patterns:
            try:
                if pattern.matches(module):
                    return value
            except ValueError as error:
                why = f"which is no pattern that can be matched quickly: {error}; write module names as peft does"
                raise ModelError(f"{field} has {_shown(pattern.text)}, {why}", path=self.path) from error
        return otherwise


def read_settings(folder: Path) -> AdapterSettings:
    """The settings in a folder. Raises ModelError naming the file and the field at fault."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise ModelError(f"holds no {CONFIG_NAME}: an adapter is a folder as peft's save_pretrained writes it", path=str(folder))
    config = read_json_object(path)

    def fail(name: str, why: str) -> ModelError:
        return ModelError(f"{name} is {_shown(config.get(name))}: {why}", path=str(path))

    if config.get("peft_type") != "LORA":
        raise fail("peft_type", "only LORA is served")
    for name, why in _REFUSED.items():
        if config.get(name):
            raise fail(name, why)
    if config.get("bias", "none") != "none":
        raise fail("bias", f"trained biases are not served: {_MERGE}")
    begin = config.get("init_lora_weights", True)
    if isinstance(begin, str) and begin.lower().startswith(_CHANGES_BASE):
        raise fail("init_lora_weights", "this adapter belongs to changed base weights: convert it to a plain LoRA when saving")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise fail("r", "a whole number above 0 is needed")
    if not _finite(alpha):
        raise fail("lora_alpha", "a finite number is needed")
    whole = config.get("modules_to_save") or []
    if not isinstance(whole, list) or not all(isinstance(one, str) for one in whole):
        raise fail("modules_to_save", "a list of module names is needed, as peft writes it")
    return AdapterSettings(
        rank, float(alpha), bool(config.get("use_rslora")), bool(config.get("use_dora")),
        _patterns(config, "rank_pattern", path), _patterns(config, "alpha_pattern", path), str(config.get("base_model_name_or_path") or ""),
        str(path), tuple(whole),
    )  # fmt: skip


def _patterns(config: Mapping[str, Any], name: str, path: Path) -> tuple[tuple[NamePattern, Any], ...]:
    given, found = config.get(name) or {}, list[tuple[NamePattern, Any]]()
    if not isinstance(given, dict) or not all(_finite(value) and value > 0 for value in given.values()):
        raise ModelError(f"{name} is {_shown(given)}: an object of names and finite numbers above 0 is needed", path=str(path))
    for text, value in given.items():
        try:
            found.append((NamePattern(text), value))
        except ValueError as error:
            why = f"which is no regular expression for the end of a module's name: {error}"
            raise ModelError(f"{name} has {_shown(text)}, {why}; write module names as peft does", path=str(path)) from error
    branching = sum(pattern.branches for pattern, _ in found)
    if branching > _BRANCHING:
        why = f"{branching} keys with groups or counts, more than {_BRANCHING}"
        raise ModelError(f"{name} has {why}: write module names as peft does", path=str(path))
    return tuple(found)


def _finite(value: Any) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."

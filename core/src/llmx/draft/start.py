"""From hooks and configuration to the drafter of an engine."""

from __future__ import annotations

import pluggy

from llmx.config import DraftConfig, EngineConfig
from llmx.draft.drafter import Drafter
from llmx.draft.settings import whole_number
from llmx.errors import ConfigError
from llmx.hooks.loader import load_target
from llmx.hooks.types import DrafterDef
from llmx.record import record

__all__ = ["MAX_DRAFTS", "ChosenDrafter", "choose_drafter"]

MAX_DRAFTS = 16  # per request and step
_OWN = ("method", "num_speculative_tokens")  # settings of every method
_DEVICE = {
    "mtp": "MTP", "dflash": "a block-diffusion drafter", "ngram_gpu": "n-grams on the device",
}  # fmt: skip


@record
class ChosenDrafter:
    """A drafter and how many tokens a request may draft per step at most."""

    name: str
    drafter: Drafter
    num_tokens: int
    settings: dict[str, object]

    def __str__(self) -> str:
        shown = "".join(f", {name} {value}" for name, value in self.settings.items())
        return f"{self.name}, at most {self.num_tokens} tokens per request and step{shown}"


def choose_drafter(manager: pluggy.PluginManager, config: EngineConfig) -> ChosenDrafter | None:
    """The drafter that the configuration names; None without one. Raises ConfigError that names the method or setting and what there is."""
    method, num_tokens, settings = _settings(config.draft)
    if method is None:
        return None
    defs = {one.name: one for listed in manager.hook.llmx_drafters(config=config) for one in listed}
    if method not in defs:
        kind = f" ({_DEVICE[method]})" if method in _DEVICE else ""
        raise _error(f"method is {method!r}{kind}, which is not there; take one of {', '.join(sorted(defs))}")
    chosen = defs[method]
    _check_names(chosen, settings)
    drafter: Drafter = load_target(chosen.target)(settings)
    return ChosenDrafter(method, drafter, num_tokens if num_tokens is not None else chosen.num_tokens, settings)


def _settings(draft: DraftConfig) -> tuple[str | None, int | None, dict[str, object]]:
    """(method, tokens per step, the method's own settings) from --speculative-config and the short flags."""
    given = dict(draft.settings)
    method, num_tokens = given.pop("method", None), whole_number(given, "num_speculative_tokens", 1, MAX_DRAFTS)
    given.pop("num_speculative_tokens", None)
    twice = (("method", method, "--spec-method", draft.method), ("num_speculative_tokens", num_tokens, "--spec-tokens", draft.num_tokens))
    for name, value, flag, other in twice:
        if value is not None and other is not None:
            raise _error(f"{name} is given twice, also as {flag}: leave one out")
    method, num_tokens = method if method is not None else draft.method, num_tokens if num_tokens is not None else draft.num_tokens
    if method is None and (given or num_tokens is not None):
        raise _error('there is no method: name one, as in {"method": "ngram", "num_speculative_tokens": 4}, or with --spec-method')
    if method is not None and not isinstance(method, str):
        raise _error(f"method is {method!r}: it must be a text such as ngram")
    return method, num_tokens, {name: value for name, value in given.items() if value is not None}


def _check_names(chosen: DrafterDef, settings: dict[str, object]) -> None:
    for name in settings:
        if name not in chosen.settings:
            raise _error(f"{name} is no setting of {chosen.name!r}, which has {', '.join((*_OWN, *chosen.settings))}: leave it out")


def _error(why: str) -> ConfigError:
    return ConfigError(f"speculative_config: {why}", field="speculative_config")

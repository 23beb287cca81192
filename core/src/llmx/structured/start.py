"""From hooks and configuration to the Grammars of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

from llmx.config import EngineConfig
from llmx.errors import ConfigError
from llmx.hooks.loader import load_target
from llmx.hooks.types import StructuredBackendDef
from llmx.structured.grammar import Backend, TokenTable
from llmx.structured.manager import Grammars
from llmx.tokens.source import TokenizerSource

__all__ = ["grammars_from"]


def grammars_from(manager: pluggy.PluginManager, config: EngineConfig, source: TokenizerSource, vocab_size: int, eos_ids: tuple[int, ...]) -> Grammars:
    """The backends of all plugins in order: the one that the user named, then by priority, then by name.

    Nothing is imported and no tokenizer read before the first grammar comes. Raises ConfigError for a backend that nobody has.
    """
    wanted = config.structured.backend
    defs = [one for listed in manager.hook.llmx_structured_backends(config=config) for one in listed]
    if wanted != "auto" and wanted not in {one.name for one in defs}:
        names = ", ".join(sorted(one.name for one in defs)) or "none; pip install llmx-llguidance"
        raise ConfigError(f"structured_outputs_backend is {wanted!r}: installed are {names}", field="structured_outputs_backend")
    ranked = sorted(defs, key=lambda one: (one.name != wanted, -one.priority, one.name))
    return Grammars(
        [(one.name, _maker(one)) for one in ranked],
        lambda: _table(source, vocab_size, eos_ids),
        timeout_s=config.structured.timeout_s,
        supports={one.name: load_target(one.supports) for one in ranked if one.supports is not None},
    )


def _maker(one: StructuredBackendDef) -> Callable[[TokenTable], Backend]:
    def make(table: TokenTable) -> Backend:
        backend: Any = load_target(one.target)(table)
        return backend  # type: ignore[no-any-return]

    return make


def _table(source: TokenizerSource, vocab_size: int, eos_ids: tuple[int, ...]) -> TokenTable:
    from llmx.structured.token_table import token_table  # with them comes the tokenizers library, which an engine without grammars does not need
    from llmx.tokens.tokenizer import Tokenizer

    return token_table(Tokenizer.load(source), vocab_size, eos_ids)

"""fetch_model: the hub model that a configuration names, brought to this machine; TransferLine: what is said meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from llmx.config import EngineConfig, ModelConfig
from llmx.weights.sources import hub_name
from llmx.weights.transfer import OnTransfer, Transfer, file_size

if TYPE_CHECKING:
    from llmx.weights.hub import Hub

__all__ = ["OnTransfer", "Transfer", "TransferLine", "fetch_model", "file_size", "hub_of"]

_LARGE = 10_000_000  # bytes of a file from which on its tenths are told


def fetch_model(config: EngineConfig, on_transfer: OnTransfer | None = None) -> EngineConfig:
    """Fetch the hub model that `config` names where it is not here yet, its tokenizer's too; the configuration without the token, which is
    spent, unless adapters are fetched later.

    No connection is made when everything is here. Raises ModelError.
    """
    model = config.model
    name = hub_name(model.source, model.revision)
    if name is not None:
        hub_of(model).ensure(name, on_transfer)
    tokenizer = None if model.tokenizer is None else hub_name(model.tokenizer)
    if tokenizer is not None:
        hub_of(model).ensure(tokenizer, on_transfer, tokenizer=True)
    return config if config.lora.hub else replace(config, model=replace(model, hf_token=None))


def hub_of(config: ModelConfig) -> Hub:
    """The hub, with the cache and the token that a configuration names."""
    from llmx.weights.hub import Hub  # for those who name a hub model: starts of others are faster without
    from llmx.weights.hub_cache import HubCache

    return Hub(HubCache(config.download_dir), config.hf_token, config.offline)


class TransferLine:
    """Progress of a download as text: one line that changes on a terminal; elsewhere a line per file and per tenth of a large one.

    stream None: a process without stderr, which is told nothing.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._terminal = stream, stream is not None and stream.isatty()
        self._said: dict[str, int] = {}

    def __enter__(self) -> TransferLine:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._stream is not None and self._said and self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def show(self, transfer: Transfer) -> None:
        """Say how far it is, where that is news."""
        if self._stream is None:
            return
        tenths = 10 * transfer.done // transfer.size if transfer.size else 10
        total = f"{file_size(transfer.total_done)} of {file_size(transfer.total_size)}"
        if self._terminal:
            self._stream.write(f"\r\x1b[Kfetching {transfer.file}: {total}")
        elif tenths > self._said.get(transfer.file, -1) and (tenths == 10 or transfer.size >= _LARGE):
            again = f", goes on from {file_size(transfer.resumed)}" if transfer.resumed and transfer.file not in self._said else ""
            self._stream.write(f"fetching {transfer.file}: {file_size(transfer.done)} of {file_size(transfer.size)}, {total} in all{again}\n")
        self._said[transfer.file] = tenths
        self._stream.flush()

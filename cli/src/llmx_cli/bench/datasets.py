"""Prompts for benchmarks: random tokens, conversations, lines of a file, or prompts that share their starts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx.errors import ConfigError
from llmx.record import record

if TYPE_CHECKING:
    from llmx.tokens.tokenizer import Tokenizer

__all__ = ["DATASETS", "DatasetOptions", "Sample", "samples"]

DATASETS = ("random", "sharegpt", "custom", "prefix_repetition")
_MAX_PROMPT, _MAX_TOTAL, _MIN = 1024, 2048, 4  # tokens; what is usually kept of conversations
_WORDS = "the of and to in is that for it as was with be by on not he this are or his from at which but have an had they you were their one all we can".split()


@record
class Sample:
    """One request: a prompt as text or token ids, and how many tokens to generate."""

    prompt: str | list[int]
    output_len: int


@record
class DatasetOptions:
    """The options that say what prompts are sent."""

    dataset_name: Annotated[str, typer.Option(metavar="|".join(DATASETS), help="What prompts are made of.")] = "random"
    dataset_path: Annotated[str | None, typer.Option(metavar="FILE", help="File of sharegpt (JSON) or custom (JSON lines).")] = None
    num_prompts: Annotated[int, typer.Option(min=1, metavar="N", help="Requests.")] = 1000
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of prompts and arrivals.")] = 0
    random_input_len: Annotated[int, typer.Option(min=1, metavar="N", help="random: prompt tokens.")] = 1024
    random_output_len: Annotated[int, typer.Option(min=1, metavar="N", help="random: generated tokens.")] = 128
    random_range_ratio: Annotated[float, typer.Option(min=0, max=0.99, help="random: lengths vary by this share, up and down.")] = 0.0
    random_prefix_len: Annotated[int, typer.Option(min=0, metavar="N", help="random: tokens that all prompts begin with.")] = 0
    sharegpt_output_len: Annotated[int | None, typer.Option(min=1, metavar="N", help="sharegpt: instead of the answers' lengths.")] = None
    custom_output_len: Annotated[int, typer.Option(min=1, metavar="N", help="custom: where a line has no output_tokens.")] = 256
    prefix_repetition_prefix_len: Annotated[int, typer.Option(min=1, metavar="N", help="prefix_repetition: tokens of a shared start.")] = 256
    prefix_repetition_suffix_len: Annotated[int, typer.Option(min=1, metavar="N", help="prefix_repetition: tokens after it.")] = 256
    prefix_repetition_num_prefixes: Annotated[int, typer.Option(min=1, metavar="N", help="prefix_repetition: different starts.")] = 10
    prefix_repetition_output_len: Annotated[int, typer.Option(min=1, metavar="N", help="prefix_repetition: generated tokens.")] = 128


def samples(asked: DatasetOptions, tokenizer: Tokenizer | None, *, as_text: bool) -> list[Sample]:
    """The requests. tokenizer None: lengths are in words; as_text: prompts are never token ids. Raises ConfigError."""
    draw = random.Random(asked.seed)
    match asked.dataset_name:
        case "random":
            found = list(_random(asked, _Prompts(tokenizer, as_text), draw))
        case "prefix_repetition":
            found = list(_prefixes(asked, _Prompts(tokenizer, as_text), draw))
        case "sharegpt":
            found = _repeated(_sharegpt(_lines(asked), asked, tokenizer), asked, draw)
        case "custom":
            found = _repeated(_custom(_lines(asked), asked), asked, draw)
        case other:
            raise ConfigError(f"--dataset-name is {other!r}: it must be one of {', '.join(DATASETS)}", field="dataset_name")
    return found


class _Prompts:
    """Prompts of given lengths: ids drawn from the ordinary tokens, or words where there is no tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None, as_text: bool) -> None:
        self._tokenizer, self._as_text = tokenizer, as_text
        self._ids = [] if tokenizer is None else [token for token in range(tokenizer.vocab_size) if not tokenizer.is_special(token)]

    def draw(self, count: int, source: random.Random) -> list[Any]:
        """`count` token ids or words."""
        return source.choices(self._ids or _WORDS, k=count)

    def finished(self, tokens: Sequence[Any]) -> str | list[int]:
        """The prompt that they make."""
        if self._tokenizer is None:
            return " ".join(tokens)
        return self._tokenizer.decode(tokens) if self._as_text else list(tokens)


def _random(asked: DatasetOptions, prompts: _Prompts, draw: random.Random) -> Iterator[Sample]:
    prefix = prompts.draw(asked.random_prefix_len, draw)

    def around(length: int) -> int:
        spread = int(length * asked.random_range_ratio)
        return max(1, draw.randint(length - spread, length + spread))

    for _ in range(asked.num_prompts):
        own = prompts.draw(around(asked.random_input_len), draw)
        yield Sample(prompts.finished([*prefix, *own]), around(asked.random_output_len))


def _prefixes(asked: DatasetOptions, prompts: _Prompts, draw: random.Random) -> Iterator[Sample]:
    starts = [prompts.draw(asked.prefix_repetition_prefix_len, draw) for _ in range(asked.prefix_repetition_num_prefixes)]
    order = [index % len(starts) for index in range(asked.num_prompts)]
    draw.shuffle(order)
    for index in order:
        own = prompts.draw(asked.prefix_repetition_suffix_len, draw)
        yield Sample(prompts.finished([*starts[index], *own]), asked.prefix_repetition_output_len)


def _lines(asked: DatasetOptions) -> list[Any]:
    """The entries of the file: a JSON list, or one object per line."""
    if asked.dataset_path is None:
        raise ConfigError(f"--dataset-name {asked.dataset_name} needs --dataset-path FILE", field="dataset_path")
    try:
        text = Path(asked.dataset_path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--dataset-path {asked.dataset_path}: {error.strerror}", field="dataset_path") from None
    try:
        return list(json.loads(text)) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"--dataset-path {asked.dataset_path} is neither a JSON list nor JSON lines: {error}", field="dataset_path") from None


def _sharegpt(entries: Sequence[Any], asked: DatasetOptions, tokenizer: Tokenizer | None) -> Iterator[Sample]:
    def length(text: str) -> int:
        return len(tokenizer.encode(text)) if tokenizer is not None else len(text.split()) * 4 // 3

    for entry in entries:
        turns = entry.get("conversations") or entry.get("conversation") or [] if isinstance(entry, dict) else []
        if len(turns) < 2:
            continue
        prompt, answer = (str(turn.get("value", "")) for turn in turns[:2])
        asks, gives = length(prompt), asked.sharegpt_output_len or length(answer)
        if _MIN <= asks <= _MAX_PROMPT and gives >= _MIN and asks + gives <= _MAX_TOTAL:
            yield Sample(prompt, gives)


def _custom(entries: Sequence[Any], asked: DatasetOptions) -> Iterator[Sample]:
    for number, entry in enumerate(entries, 1):
        prompt = entry.get("prompt") if isinstance(entry, dict) else None
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f'--dataset-path {asked.dataset_path}: entry {number} has no "prompt" text', field="dataset_path")
        yield Sample(prompt, int(entry.get("output_tokens") or asked.custom_output_len))


def _repeated(found: Iterator[Sample], asked: DatasetOptions, draw: random.Random) -> list[Sample]:
    """As many as asked for, in random order; a short file is gone through again."""
    entries = list(found)
    if not entries:
        raise ConfigError(f"--dataset-path {asked.dataset_path} holds no usable entry for {asked.dataset_name}", field="dataset_path")
    draw.shuffle(entries)
    return [entries[index % len(entries)] for index in range(asked.num_prompts)]

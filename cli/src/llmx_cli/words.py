"""The words after `chat` and `complete`: which is the model, which the text."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from llmx_cli.options import Settings

__all__ = ["WORDS", "with_words"]


WORDS = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODEL TEXT", help="A model as for `llmx serve`, a text in quotes to answer and end, or both.", show_default=False),
]


def with_words(command: str, settings: Settings, words: list[str] | None, text: str | None, url: str | None) -> tuple[Settings, str | None]:
    """The settings with the model that `words` name, and the text. Raises BadParameter saying what to type."""
    model, text = _model_and_text(command, list(words or ()), settings.options.get("model"), text, remote=url is not None)
    return (settings if model is None else replace(settings, options={**settings.options, "model": model})), text


def _model_and_text(command: str, words: list[str], model: str | None, text: str | None, *, remote: bool) -> tuple[str | None, str | None]:
    """(model, text) of [MODEL] [TEXT], where --model and --quick may have named them already; a server (remote) may name models anyhow."""
    if len(words) > 2 or (len(words) == 2 and not _may_be_model(words[0])):
        raise typer.BadParameter(f"text of several words needs quotes: llmx {command} {_quoted(' '.join(words))}")
    if len(words) == 2:
        if text is not None:
            raise typer.BadParameter("the text is given twice: leave out --quick or the second word")
        return _one("model", words[0], model), words[1]
    if not words:
        return model, text
    if text is None and (model is not None or not _may_be_model(words[0])):
        return model, words[0]
    if text is None and not remote and not _is_model(words[0]):
        near = get_close_matches(words[0].lower(), _embedded(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        as_text = f"as text: llmx {command} -q {_quoted(words[0])}"
        raise typer.BadParameter(f"{words[0]!r} is no model here. {hint}To send it {as_text}; with another model: llmx {command} MODEL TEXT")
    return _one("model", words[0], model), text


def _one(what: str, word: str, option: str | None) -> str:
    if option is not None and option != word:
        raise typer.BadParameter(f"the {what} is given twice, as {word!r} and with --{what} {option!r}: leave one out")
    return word


def _may_be_model(word: str) -> bool:
    """Names of models and paths have no blanks; a path that exists may have."""
    return not any(letter.isspace() for letter in word) or Path(word).expanduser().exists()


def _is_model(word: str) -> bool:
    """An embedded name, a path, or the form of a hub model."""
    return word.lower() in _embedded() or Path(word).expanduser().exists() or "/" in word or word.lower().endswith(".gguf")


def _embedded() -> list[str]:
    from llmx.engine.model_store import EMBEDDED

    return list(EMBEDDED)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'

"""`llmx complete`: continues texts, with a model in this process or a server."""

from __future__ import annotations

from typing import Annotated

import typer

from llmx_cli.options import Settings, with_settings
from llmx_cli.source import Sampling, open_source
from llmx_cli.terminal import read_lines, show
from llmx_cli.words import WORDS, with_words

__all__ = ["complete"]


@with_settings(model=False)
def complete(
    settings: Settings,
    words: WORDS = None,
    quick: Annotated[str | None, typer.Option("-q", "--quick", metavar="TEXT", help="Continue this one text and end.")] = None,
    url: Annotated[str | None, typer.Option("--url", "--base-url", metavar="URL", help="Use this OpenAI-compatible server instead of loading a model.")] = None,
    key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="API key of that server.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 takes the most likely token.", show_default="the model's own")] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Longest continuation in tokens.")] = 128,
) -> None:
    """Continue a text, or each line of the input."""
    settings, quick = with_words("complete", settings, words, quick, url)
    source = open_source(settings, url, key)
    sampling = Sampling(temperature, max_tokens)
    try:
        if quick is not None:
            show(source.complete(quick, sampling), stop_on_interrupt=False)
            return
        for line in read_lines("text> "):
            if line:
                show(source.complete(line, sampling), stop_on_interrupt=True)
    finally:
        source.close()

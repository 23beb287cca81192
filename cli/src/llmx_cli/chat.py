"""`llmx chat`: a conversation on the terminal, with a model in this process or a server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmx_cli.options import Settings, with_settings
from llmx_cli.source import Sampling, Source, open_source
from llmx_cli.terminal import read_lines, show
from llmx_cli.words import WORDS, with_words

__all__ = ["chat", "run"]

_HELP = "/reset starts again, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


@with_settings(model=False)
def chat(
    settings: Settings,
    words: WORDS = None,
    quick: Annotated[str | None, typer.Option("-q", "--quick", metavar="TEXT", help="Answer this one message and end.")] = None,
    system_prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="System message of the conversation.")] = None,
    url: Annotated[str | None, typer.Option("--url", "--base-url", metavar="URL", help="Use this OpenAI-compatible server instead of loading a model.")] = None,
    key: Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="API key of that server.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 takes the most likely token.", show_default="the model's own")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Longest answer in tokens.", show_default="what the context allows")] = None,
) -> None:
    """Chat on the terminal: with a model loaded here, or with a server (--url). Reads lines from a pipe as well."""
    settings, quick = with_words("chat", settings, words, quick, url)
    source = open_source(settings, url, key)
    sampling = Sampling(temperature, max_tokens)
    start = [{"role": "system", "content": system_prompt}] if system_prompt else []
    try:
        if quick is not None:
            show(source.chat([*start, {"role": "user", "content": quick}], sampling), stop_on_interrupt=False)
        else:
            _converse(source, start, sampling)
    finally:
        source.close()


run = chat  # what other tools call it


def _converse(source: Source, start: list[dict[str, str]], sampling: Sampling) -> None:
    if sys.stdin.isatty():
        typer.echo(_HELP)
    messages = list(start)
    for line in read_lines("> "):
        match line.strip():
            case "":
                continue
            case "/quit" | "/exit":
                return
            case "/reset":
                messages = list(start)
                typer.echo("the conversation starts again")
            case command if command.startswith("/"):
                typer.echo(f"{command.split()[0]} is no command here: {_HELP}")
            case text:
                messages.append({"role": "user", "content": text})
                answer = show(source.chat(messages, sampling), stop_on_interrupt=True)
                if answer is None:
                    messages.pop()  # a refused message must not spoil the ones after it
                else:
                    messages.append({"role": "assistant", "content": answer})

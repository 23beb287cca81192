"""`llmx bench`: how fast a model runs here."""

from __future__ import annotations

import json
import random
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx_cli.options import Settings, with_settings
from llmx_cli.pull import fetched

if TYPE_CHECKING:
    from llmx.engine.llm import LLM

__all__ = ["app"]

app = typer.Typer(help="Measure how fast a model runs here.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Keeps `throughput` a subcommand while it is the only one."""


@app.command()
@with_settings()
def throughput(
    settings: Settings,
    num_prompts: Annotated[int, typer.Option(min=1, metavar="N", help="Requests.")] = 32,
    input_len: Annotated[int, typer.Option(min=1, metavar="N", help="Prompt tokens of each request.")] = 128,
    output_len: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens that each request generates.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Offline throughput: all requests at once, random prompts, end-of-text ignored. Loading is not counted."""
    from llmx.engine.llm import LLM

    with LLM(**fetched(settings)) as llm:
        result = _measure(llm, num_prompts, input_len, output_len)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    typer.echo(f"model       {result['model']} on {result['platform']} ({result['device']}), threads: {result['threads']}")
    typer.echo(f"requests    {num_prompts} x ({input_len} prompt + {output_len} generated) tokens in {result['elapsed_time']:.2f} s")
    typer.echo(f"throughput  {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.1f} tokens/s in all, ", nl=False)
    typer.echo(f"{result['output_tokens_per_second']:.1f} generated tokens/s")


def _measure(llm: LLM, num_prompts: int, input_len: int, output_len: int) -> dict[str, Any]:
    from llmx.sampling_params import SamplingParams

    # Random ids below the special tokens' usual places: equal starts would be taken from the prefix cache and not computed.
    draw = random.Random(0)
    ids = [token for token in range(llm.info.vocab_size) if token < llm.tokenizer.vocab_size and not llm.tokenizer.is_special(token)]
    prompts = [[draw.choice(ids) for _ in range(input_len)] for _ in range(num_prompts)]
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    llm.generate([prompts[0][:1]], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), use_tqdm=False)
    start = perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = perf_counter() - start
    generated = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    total = generated + sum(len(output.prompt_token_ids) for output in outputs)
    return {
        "model": llm.info.name,
        "platform": llm.info.platform,
        "device": llm.info.device,
        "threads": llm.info.threads,
        "elapsed_time": elapsed,
        "num_requests": num_prompts,
        "total_num_tokens": total,
        "requests_per_second": num_prompts / elapsed,
        "tokens_per_second": total / elapsed,
        "output_tokens_per_second": generated / elapsed,
    }

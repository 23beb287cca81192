"""`llmx bench latency`: the time of one batch, from prompts to the last token, in this process."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx_cli.bench.datasets import DatasetOptions, samples
from llmx_cli.bench.metrics import percentile
from llmx_cli.bench.report import print_lines, written
from llmx_cli.bench.throughput import about
from llmx_cli.options import Settings, with_settings
from llmx_cli.pull import fetched

if TYPE_CHECKING:
    from llmx.engine.llm import LLM

__all__ = ["latency"]

_SHARES = (10, 25, 50, 75, 90, 99)


@with_settings()
def latency(
    settings: Settings,
    input_len: Annotated[int, typer.Option(min=1, metavar="N", help="Prompt tokens of each request.")] = 32,
    output_len: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens that each generates.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Requests in a batch.")] = 8,
    num_iters: Annotated[int, typer.Option(min=1, metavar="N", help="Measured batches.")] = 30,
    num_iters_warmup: Annotated[int, typer.Option(min=0, metavar="N", help="Batches before them.")] = 10,
    output_json: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the result there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Latency of a batch: random prompts, each batch its own, end-of-text ignored. Loading is not counted."""
    from llmx.engine.llm import LLM

    rounds = num_iters_warmup + num_iters
    asked = DatasetOptions(num_prompts=batch_size * rounds, random_input_len=input_len, random_output_len=output_len)
    with LLM(**fetched(settings)) as llm:
        times = _measure(llm, asked, batch_size)[num_iters_warmup:]
        result = {
            **about(llm),
            "avg_latency": sum(times) / len(times),
            "latencies": times,
            "percentiles": {str(share): percentile(times, share) for share in _SHARES},
        }
    if written(result, output_json, as_json=as_json):
        return
    spread = ", ".join(f"p{share} {value:.3f}" for share, value in result["percentiles"].items())
    rows = {
        "model": f"{result['model']} on {result['platform']} ({result['device']}), threads: {result['threads']}",
        "batch": f"{batch_size} x ({input_len} prompt + {output_len} generated) tokens, {num_iters} times",
        "latency": f"{result['avg_latency']:.3f} s on average; {spread}",
    }
    print_lines(rows)


def _measure(llm: LLM, asked: DatasetOptions, batch: int) -> list[float]:
    """Seconds of each batch."""
    from llmx.sampling_params import SamplingParams

    prompts: list[Any] = [sample.prompt for sample in samples(asked, llm.tokenizer, as_text=False)]
    params = SamplingParams(temperature=0.0, max_tokens=asked.random_output_len, ignore_eos=True)
    times = []
    for first in range(0, len(prompts), batch):
        start = perf_counter()
        llm.generate(prompts[first : first + batch], params, use_tqdm=False)
        times.append(perf_counter() - start)
    return times

"""`llmx bench throughput`: all requests at once, in this process."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx_cli.bench.datasets import DATASETS, DatasetOptions, Sample, samples
from llmx_cli.bench.report import written
from llmx_cli.options import Settings, with_settings
from llmx_cli.pull import fetched

if TYPE_CHECKING:
    from llmx.engine.llm import LLM

__all__ = ["about", "throughput"]


@with_settings()
def throughput(
    settings: Settings,
    num_prompts: Annotated[int, typer.Option(min=1, metavar="N", help="Requests.")] = 32,
    input_len: Annotated[int, typer.Option("--input-len", "--random-input-len", min=1, metavar="N", help="random: prompt tokens of each request.")] = 128,
    output_len: Annotated[int, typer.Option("--output-len", "--random-output-len", min=1, metavar="N", help="random: tokens that each generates.")] = 128,
    dataset_name: Annotated[str, typer.Option(metavar="|".join(DATASETS), help="What prompts are made of.")] = "random",
    dataset_path: Annotated[str | None, typer.Option(metavar="FILE", help="File of sharegpt (JSON) or custom (JSON lines).")] = None,
    output_json: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the result there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Offline throughput: all requests at once, end-of-text ignored. Loading is not counted."""
    from llmx.engine.llm import LLM

    asked = DatasetOptions(dataset_name, dataset_path, num_prompts, random_input_len=input_len, random_output_len=output_len)
    with LLM(**fetched(settings)) as llm:
        result = _measure(llm, asked)
    if written(result, output_json, as_json=as_json):
        return
    sizes = f"({input_len} prompt + {output_len} generated) tokens" if dataset_name == "random" else f"of {dataset_name}, {result['total_num_tokens']} tokens"
    typer.echo(f"model       {result['model']} on {result['platform']} ({result['device']}), threads: {result['threads']}")
    typer.echo(f"requests    {num_prompts} x {sizes} in {result['elapsed_time']:.2f} s")
    typer.echo(f"throughput  {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.1f} tokens/s in all, ", nl=False)
    typer.echo(f"{result['output_tokens_per_second']:.1f} generated tokens/s")


def _measure(llm: LLM, asked: DatasetOptions) -> dict[str, Any]:
    from llmx.sampling_params import SamplingParams

    # Drawn from the ordinary tokens: equal starts would be taken from the prefix cache and not computed.
    wanted = [_within(sample, llm) for sample in samples(asked, llm.tokenizer, as_text=False)]
    prompts: list[Any] = [sample.prompt for sample in wanted]
    params = [SamplingParams(temperature=0.0, max_tokens=sample.output_len, ignore_eos=True) for sample in wanted]
    llm.generate([prompts[0][:1]], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), use_tqdm=False)
    start = perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = perf_counter() - start
    generated = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    total = generated + sum(len(output.prompt_token_ids) for output in outputs)
    return {
        **about(llm),
        "elapsed_time": elapsed,
        "num_requests": len(prompts),
        "total_num_tokens": total,
        "requests_per_second": len(prompts) / elapsed,
        "tokens_per_second": total / elapsed,
        "output_tokens_per_second": generated / elapsed,
    }


def _within(sample: Sample, llm: LLM) -> Sample:
    """A sample whose ids the model has: a tokenizer may know more tokens than the model."""
    if isinstance(sample.prompt, str):
        return sample
    size = llm.info.vocab_size
    return replace(sample, prompt=[token if token < size else token % size for token in sample.prompt])


def about(llm: LLM) -> dict[str, Any]:
    """What ran, for a result."""
    info = llm.info
    return {"model": info.name, "platform": info.platform, "device": info.device, "threads": info.threads}

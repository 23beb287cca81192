"""`llmx bench serve`: load on any OpenAI-compatible server, and what its clients see."""

from __future__ import annotations

import json
import math
import random
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmx.errors import ConfigError
from llmx.record import record
from llmx_cli.bench.datasets import DatasetOptions, Sample, samples
from llmx_cli.bench.metrics import METRICS
from llmx_cli.fields import with_fields

if TYPE_CHECKING:
    from llmx.tokens.tokenizer import Tokenizer
    from llmx_cli.bench.load import Load

__all__ = ["ServeOptions", "serve"]

_BACKENDS = ("openai", "openai-chat")
_LIST = "Several: comma between."


@record
class ServeOptions:
    """The options of `llmx bench serve` beside the dataset's."""

    backend: Annotated[str, typer.Option("--backend", "--endpoint-type", metavar="|".join(_BACKENDS), help="Completions or chat.")] = "openai"
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="The server, e.g. https://host/v1; instead of host and port.")] = None
    host: Annotated[str, typer.Option(metavar="TEXT")] = "127.0.0.1"
    port: Annotated[int, typer.Option(metavar="N")] = 8000
    endpoint: Annotated[str | None, typer.Option(metavar="PATH", help="Instead of the backend's own path.", show_default=False)] = None
    model: Annotated[str | None, typer.Option("--model", "--served-model-name", metavar="TEXT", help="Model to ask for. Default: the server's first.")] = None
    tokenizer: Annotated[str | None, typer.Option(metavar="TEXT", help="Model here whose tokenizer makes the prompts. Default: --model, if it is here.")] = None
    api_key: Annotated[str | None, typer.Option(metavar="KEY", help="Sent as a bearer token.")] = None
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Sent with every request; several are allowed.")] = None
    num_warmups: Annotated[int, typer.Option(min=0, metavar="N", help="Requests before the measured ones.")] = 0
    request_rate: Annotated[float, typer.Option(metavar="N", help="Requests per second; inf sends all at once.")] = math.inf
    burstiness: Annotated[float, typer.Option(help="1: Poisson arrivals; below: bursts; above: more even.")] = 1.0
    max_concurrency: Annotated[int | None, typer.Option(min=1, metavar="N", help="Requests in flight at most.")] = None
    ramp_up_strategy: Annotated[str | None, typer.Option(metavar="linear|exponential", help="Let the rate grow.")] = None
    ramp_up_start_rps: Annotated[float | None, typer.Option(metavar="N", help="Requests per second at first.")] = None
    ramp_up_end_rps: Annotated[float | None, typer.Option(metavar="N", help="Requests per second at last.")] = None
    goodput: Annotated[list[str] | None, typer.Option(metavar="NAME:MS", help="Count requests that keep it: ttft, tpot, e2el; several are allowed.")] = None
    percentile_metrics: Annotated[str, typer.Option(metavar="NAMES", help=f"Of ttft, tpot, itl, e2el, client_queue_time. {_LIST}")] = "ttft,tpot,itl"
    metric_percentiles: Annotated[str, typer.Option(metavar="NUMBERS", help=_LIST)] = "99"
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Generate to the full length.")] = False
    temperature: Annotated[float | None, typer.Option(help="Default: the server's own.", show_default=False)] = None
    top_p: Annotated[float | None, typer.Option()] = None
    top_k: Annotated[int | None, typer.Option()] = None
    min_p: Annotated[float | None, typer.Option()] = None
    logprobs: Annotated[int | None, typer.Option(metavar="N", help="Ask for so many logprobs per token.")] = None
    extra_body: Annotated[str | None, typer.Option(metavar="JSON", help="More fields of every request.")] = None
    save_result: Annotated[bool, typer.Option("--save-result", help="Write the result to a file.")] = False
    save_detailed: Annotated[bool, typer.Option("--save-detailed", help="With every request's lengths, times and text.")] = False
    append_result: Annotated[bool, typer.Option("--append-result", help="Add a line to the file instead.")] = False
    result_dir: Annotated[str, typer.Option(metavar="DIR")] = "."
    result_filename: Annotated[str | None, typer.Option(metavar="FILE", help="Default: made of label, rate, model and time.", show_default=False)] = None
    metadata: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Written into the result; several are allowed.")] = None
    label: Annotated[str | None, typer.Option(metavar="TEXT", help="Written into the result. Default: the backend.", show_default=False)] = None
    ready_check_timeout_sec: Annotated[float, typer.Option(min=0, help="Wait so long for the server.")] = 600
    disable_tqdm: Annotated[bool, typer.Option("--disable-tqdm", help="No progress line.")] = False


@with_fields(ServeOptions, "asked")
@with_fields(DatasetOptions, "dataset")
def serve(
    asked: ServeOptions,
    dataset: DatasetOptions,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tracebacks.")] = False,
) -> int:
    """Send requests to a server and measure what clients see. Exit code 1 when any request failed."""
    import asyncio  # 20 ms that other commands need not pay

    from llmx_cli.bench.report import print_load

    result = asyncio.run(_measure(asked, dataset))
    errors = result.pop("errors_seen")
    if asked.save_result or asked.save_detailed or asked.append_result:
        path = _save(asked, result)
        typer.echo(f"written to {path}", err=True)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        print_load(result)
    for message, count in errors:
        typer.echo(f"failed {count}x: {message}", err=True)
    return 1 if result["failed"] else 0


async def _measure(asked: ServeOptions, dataset: DatasetOptions) -> dict[str, Any]:
    from llmx_cli.bench.arrivals import arrival_times, check_arrivals
    from llmx_cli.bench.client import Client
    from llmx_cli.bench.exchange import PATHS
    from llmx_cli.bench.figures import load_figures, parse_goodput
    from llmx_cli.bench.load import first_model, run_load, wait_until_ready

    check_arrivals(asked.request_rate, asked.burstiness, asked.ramp_up_strategy, asked.ramp_up_start_rps, asked.ramp_up_end_rps)
    backend = "openai" if asked.backend in ("vllm", "llmx") else asked.backend
    _choice("--backend", backend, _BACKENDS)
    metrics = [name.strip() for name in asked.percentile_metrics.split(",") if name.strip()]
    for name in metrics:
        _choice("--percentile-metrics", name, tuple(METRICS))
    goodput, shares = parse_goodput(asked.goodput or ()), _numbers(asked.metric_percentiles)
    extra, headers = _object(asked.extra_body), _pairs("--header", asked.header)
    if asked.api_key:
        headers["Authorization"] = f"Bearer {asked.api_key}"
    client = Client(asked.base_url or f"http://{asked.host}:{asked.port}", headers)
    model = asked.model or first_model(await wait_until_ready(client, asked.ready_check_timeout_sec))
    tokenizer = _tokenizer(asked.tokenizer, model)
    wanted = samples(dataset, tokenizer, as_text=backend == "openai-chat")

    def body(sample: Sample) -> dict[str, Any]:
        return _body(asked, extra, backend, model, sample)

    path, draw = asked.endpoint or PATHS[backend], random.Random(dataset.seed)
    if asked.num_warmups:
        warm = [wanted[index % len(wanted)] for index in range(asked.num_warmups)]
        await run_load(client, path, body, warm, [0.0] * len(warm), max_concurrency=asked.max_concurrency)
    ramp = (asked.ramp_up_strategy, asked.ramp_up_start_rps or 0.0, asked.ramp_up_end_rps or 0.0)
    times = list(arrival_times(len(wanted), asked.request_rate, asked.burstiness, draw, *ramp))
    show = sys.stderr.isatty() and not asked.disable_tqdm
    load = await run_load(client, path, body, wanted, times, max_concurrency=asked.max_concurrency, keep_text=asked.save_detailed, show=show)
    client.close()
    figures = load_figures(load.exchanges, load.duration, metrics, shares, goodput)
    result = {**_head(asked, dataset, backend, model, tokenizer), **figures, **_client_cost(load)}
    return {**result, **(_details(load) if asked.save_detailed else {}), "errors_seen": _errors(load)}


def _head(asked: ServeOptions, dataset: DatasetOptions, backend: str, model: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "backend": backend,
        "label": asked.label or backend,
        "model_id": model,
        "tokenizer_id": (asked.tokenizer or model) if tokenizer is not None else None,
        "num_prompts": dataset.num_prompts,
        "request_rate": asked.request_rate if math.isfinite(asked.request_rate) else "inf",
        "burstiness": asked.burstiness,
        "max_concurrency": asked.max_concurrency,
        **_pairs("--metadata", asked.metadata),
    }


def _client_cost(load: Load) -> dict[str, Any]:
    """What measuring cost: a client that is busy all the time measures itself."""
    counted = all(one.counted for one in load.exchanges if not one.error)
    return {"client_cpu_s": load.cpu_s, "client_cpu_share": load.cpu_s / load.duration, "tokens_counted_by": "server" if counted else "pieces"}


def _details(load: Load) -> dict[str, Any]:
    done = load.exchanges
    return {
        "input_lens": [one.input_tokens for one in done],
        "output_lens": [one.output_tokens for one in done],
        "ttfts": [max(one.first - one.sent, 0.0) for one in done],
        "itls": [one.gaps for one in done],
        "start_times": [one.sent for one in done],
        "generated_texts": ["".join(one.text) for one in done],
        "errors": [one.error for one in done],
    }


def _errors(load: Load) -> list[tuple[str, int]]:
    from collections import Counter

    return Counter(one.error for one in load.exchanges if one.error).most_common(5)


def _body(asked: ServeOptions, extra: dict[str, Any], backend: str, model: str, sample: Sample) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": sample.output_len}
    if backend == "openai-chat":
        body["messages"] = [{"role": "user", "content": sample.prompt}]
        if asked.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": asked.logprobs}
    else:
        body["prompt"] = sample.prompt
        if asked.logprobs is not None:
            body["logprobs"] = asked.logprobs
    for name in ("temperature", "top_p", "top_k", "min_p"):
        if getattr(asked, name) is not None:
            body[name] = getattr(asked, name)
    if asked.ignore_eos:
        body["ignore_eos"] = True
    return {**body, **extra}


def _tokenizer(named: str | None, model: str) -> Tokenizer | None:
    """The tokenizer that makes prompts; None when nobody named one and the model is not here."""
    from llmx.engine.model_tokenizer import load_tokenizer
    from llmx.errors import LlmxError
    from llmx_cli.options import Settings

    try:
        config, _ = Settings({"model": named or model}).resolve()
        return load_tokenizer(config.model)
    except LlmxError:
        if named is not None:
            raise
        typer.echo(f"no tokenizer of {model} here: prompts are made of words (name one with --tokenizer)", err=True)
        return None


def _save(asked: ServeOptions, result: dict[str, Any]) -> Path:
    name = asked.result_filename
    if name is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{asked.label or asked.backend}-{result['request_rate']}qps-{str(result['model_id']).replace('/', '-')}-{stamp}.json"
    path = Path(asked.result_dir).expanduser() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if asked.append_result else "w", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    return path


def _choice(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{flag} is {value!r}: it must be one of {', '.join(known)}", field=flag)


def _numbers(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = [-1.0]
    if not all(0 <= share <= 100 for share in shares):
        raise ConfigError(f"--metric-percentiles is {text!r}: it must be numbers in 0..100, e.g. 50,99", field="metric_percentiles")
    return shares


def _pairs(flag: str, given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag} is {item!r}: it must be NAME=VALUE", field=flag)
        pairs[name] = value
    return pairs


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"--extra-body is {text!r}: it must be a JSON object", field="extra_body")
    return value

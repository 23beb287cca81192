"""Figures of a load: from measured requests to throughput, latencies and goodput.

TTFT: sent to first piece of text. TPOT: (E2EL - TTFT) / (output tokens - 1). ITL: gap between pieces. E2EL: sent to last piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any

from llmx.errors import ConfigError
from llmx_cli.bench.exchange import Exchange
from llmx_cli.bench.metrics import percentile

__all__ = ["load_figures", "parse_goodput"]

_GOODPUT = ("ttft", "tpot", "e2el")


def parse_goodput(given: Sequence[str]) -> dict[str, float]:
    """Limits in ms by metric, from NAME:MS. Raises ConfigError."""
    limits: dict[str, float] = {}
    for item in (part for text in given for part in text.split()):
        name, _, value = item.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if name not in _GOODPUT or limits[name] < 0:
            raise ConfigError(f"--goodput is {item!r}: it must be NAME:MS with a name of {', '.join(_GOODPUT)}, e.g. ttft:500", field="goodput")
    return limits


def load_figures(
    exchanges: Sequence[Exchange], duration: float, metrics: Sequence[str], percentiles: Sequence[float], goodput: Mapping[str, float]
) -> dict[str, Any]:
    """The result by the names that benchmark files use; times in ms, `duration` in s."""
    good = [one for one in exchanges if not one.error]
    per_request = [_latencies(one) for one in good]
    output = sum(one.output_tokens for one in good)
    total_input = sum(one.input_tokens for one in good)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(exchanges) - len(good),
        "total_input_tokens": total_input,
        "total_output_tokens": output,
        "request_throughput": len(good) / duration,
        "request_goodput": _goodput(per_request, goodput) / duration if goodput else None,
        "output_throughput": output / duration,
        "total_token_throughput": (total_input + output) / duration,
        "max_output_tokens_per_s": _busiest_second(good),
        "max_concurrent_requests": _most_at_once(exchanges),
    }
    for name in metrics:
        values = [gap * 1e3 for one in good for gap in one.gaps] if name == "itl" else [one[name] for one in per_request if name in one]
        result[f"mean_{name}_ms"] = fmean(values) if values else 0.0
        result[f"median_{name}_ms"] = median(values) if values else 0.0
        result[f"std_{name}_ms"] = pstdev(values) if values else 0.0
        for share in percentiles:
            result[f"p{share:g}_{name}_ms"] = percentile(values, share)
    return result


def _latencies(one: Exchange) -> dict[str, float]:
    whole = one.last - one.sent
    found = {
        "ttft": (one.first - one.sent) * 1e3,
        "e2el": whole * 1e3,
        "client_queue_time": (one.sent - one.due) * 1e3,
        "e2el_including_client_queue": (one.last - one.due) * 1e3,
    }
    if one.output_tokens > 1:
        found["tpot"] = (one.last - one.first) / (one.output_tokens - 1) * 1e3
    return found


def _goodput(per_request: Sequence[Mapping[str, float]], limits: Mapping[str, float]) -> int:
    """Requests that keep every limit; one token alone has no time per token, and keeps that limit."""
    return sum(all(one.get(name, 0.0) <= limit for name, limit in limits.items()) for one in per_request)


def _busiest_second(exchanges: Sequence[Exchange]) -> float:
    begin = min((one.sent for one in exchanges), default=0.0)
    seconds: defaultdict[int, float] = defaultdict(float)
    for one in exchanges:
        weight = one.output_tokens / len(one.pieces)  # a piece may hold several tokens
        for piece in one.pieces:
            seconds[int(piece - begin)] += weight
    return max(seconds.values(), default=0.0)


def _most_at_once(exchanges: Sequence[Exchange]) -> int:
    changes = sorted((time, change) for one in exchanges if one.last for time, change in ((one.sent, 1), (one.last, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most

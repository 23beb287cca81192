"""When requests are sent: at a rate, in bursts, or with a rate that grows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from llmx.errors import ConfigError

__all__ = ["arrival_times", "check_arrivals"]


def check_arrivals(rate: float, burstiness: float, ramp: str | None, start_rps: float | None, end_rps: float | None) -> None:
    """Raises ConfigError for a pattern that makes no sense."""
    if not rate > 0:
        raise ConfigError(f"--request-rate is {rate}: it must be above 0, or inf to send all at once", field="request_rate")
    if not burstiness > 0 or math.isinf(burstiness):
        raise ConfigError(f"--burstiness is {burstiness}: it must be above 0; 1 is a Poisson process, less comes in bursts", field="burstiness")
    if ramp is None:
        if start_rps is not None or end_rps is not None:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy linear or exponential", field="ramp_up_strategy")
        return
    if start_rps is None or end_rps is None or start_rps < 0 or end_rps <= 0 or (ramp == "exponential" and start_rps == 0):
        raise ConfigError(f"--ramp-up-strategy {ramp} needs --ramp-up-start-rps and --ramp-up-end-rps, above 0", field="ramp_up_strategy")
    if math.isfinite(rate):
        raise ConfigError("--ramp-up-strategy sets the rate: leave --request-rate out", field="request_rate")


def arrival_times(
    count: int, rate: float, burstiness: float, draw: random.Random, ramp: str | None = None, start_rps: float = 0.0, end_rps: float = 0.0
) -> Iterator[float]:
    """Seconds from the start for each of `count` requests; gaps are gamma-distributed, their mean is 1 / rate."""
    at = 0.0
    for index in range(count):
        yield at
        share = index / max(count - 1, 1)
        if ramp == "linear":
            now = max(start_rps + (end_rps - start_rps) * share, min(end_rps, 1.0) * 1e-3)
        elif ramp == "exponential":
            now = start_rps * (end_rps / start_rps) ** share
        else:
            now = rate
        if math.isfinite(now):
            at += draw.gammavariate(burstiness, 1.0 / (now * burstiness))

"""The latencies of a load by name, and percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["METRICS", "percentile"]

# name -> what a reader sees
METRICS: Mapping[str, str] = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
    "client_queue_time": "wait in the client",
    "e2el_including_client_queue": "end-to-end latency with that wait",
}


def percentile(values: Sequence[float], share: float) -> float:
    """Percentile `share` (0..100) by linear interpolation; 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

"""Recent: exact percentiles of the last values of a kind, for people who look now; histograms since the start are in /metrics."""

from __future__ import annotations

from collections import deque

__all__ = ["Recent"]

_KEPT = 1024
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Recent:
    """The last 1,024 values."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_KEPT)

    def add(self, value: float) -> None:
        """Takes a value; the oldest is forgotten."""
        self._values.append(value)

    def percentiles(self) -> dict[str, float | int | None]:
        """count, p50, p90 and p99 (the smallest value that so large a share does not exceed); None while there is no value."""
        ordered = sorted(self._values)
        if not ordered:
            return {"count": 0, **dict.fromkeys(_SHARES)}
        last = len(ordered) - 1
        return {"count": len(ordered), **{name: ordered[min(int(share * len(ordered)), last)] for name, share in _SHARES.items()}}

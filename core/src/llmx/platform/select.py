"""Which platform, and why: the one named, else the only one present, else the highest score; a tie is an error."""

from __future__ import annotations

from collections.abc import Sequence

from llmx.errors import PlatformError
from llmx.hooks.loader import ProbeResult
from llmx.record import record

__all__ = ["NAMED_ONLY", "Selection", "select_platform"]

NAMED_ONLY = frozenset({"null", "torch"})  # core's own: they work everywhere, so they take part only when named


@record
class Selection:
    """The chosen platform; others: one line per installed platform that was not chosen."""

    name: str
    why: str
    others: tuple[str, ...] = ()


def select_platform(probes: Sequence[ProbeResult], wanted: str | None) -> Selection:
    """Choose from what the probes said. Raises PlatformError that lists each platform's reason."""
    by_name = {probe.name: probe for probe in probes}
    if wanted is not None:
        return _named(by_name, wanted)
    broken = [probe for probe in probes if probe.error]
    if broken:
        name, dist, error = broken[0].name, broken[0].dist, broken[0].error
        remedy = f"name a platform with --platform, or deny it with --deny-plugin probes:{name}"
        raise PlatformError(f"the probe of platform {name!r} ({dist}) failed; {remedy}\n{error}")
    present = [probe for probe in probes if probe.detection and probe.detection.present and probe.name not in NAMED_ONLY]
    if not present:
        raise PlatformError(_nothing(probes))
    present.sort(key=lambda probe: -_score(probe))
    best = present[0]
    if len(present) > 1 and _score(present[1]) == _score(best):
        tied = "; ".join(f"{probe.name}: {_why(probe)}" for probe in present if _score(probe) == _score(best))
        raise PlatformError(f"several platforms are present with equal score ({tied}): choose one with --platform")
    reason = "the only platform present" if len(present) == 1 else f"highest score ({_score(best)})"
    return Selection(best.name, f"{reason}: {_why(best)}", _others(by_name, best.name))


def _named(by_name: dict[str, ProbeResult], wanted: str) -> Selection:
    probe = by_name.get(wanted)
    if probe is None:
        remedy = "pip install llmx-platform-cpu" if wanted == "cpu" else "name one of these, or install the platform's package"
        raise PlatformError(f"platform {wanted!r} is not installed (installed: {', '.join(sorted(by_name)) or 'none'}): {remedy}")
    if probe.error:
        raise PlatformError(f"the probe of platform {wanted!r} ({probe.dist}) failed:\n{probe.error}")
    if probe.detection is None or not (probe.detection.present or probe.detection.named):
        raise PlatformError(f"platform {wanted!r} was asked for but is not present: {_why(probe)}")
    return Selection(wanted, f"named by the user: {_why(probe)}", _others(by_name, wanted))


def _others(by_name: dict[str, ProbeResult], chosen: str) -> tuple[str, ...]:
    return tuple(f"{name}: installed, not used: {_why(probe)}" for name, probe in sorted(by_name.items()) if name != chosen and name not in NAMED_ONLY)


def _nothing(probes: Sequence[ProbeResult]) -> str:
    installed = [f"{probe.name}: {_why(probe)}" for probe in probes if probe.name not in NAMED_ONLY]
    if installed:
        return f"no installed platform is present on this machine ({'; '.join(installed)}); for the CPU: pip install llmx-platform-cpu"
    return "no platform is installed: pip install llmx-platform-cpu"


def _why(probe: ProbeResult) -> str:
    if probe.error:
        return "its probe failed"
    return probe.detection.why if probe.detection and probe.detection.why else "no reason given"


def _score(probe: ProbeResult) -> int:
    return probe.detection.score if probe.detection else 0

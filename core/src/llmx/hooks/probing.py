"""What probes of accelerators share: device files, hidden devices, the build of torch. Reads files alone; no driver and no torch is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from llmx.hooks.types import Detection
from llmx.record import record

__all__ = ["DeviceFiles", "detect_devices", "emulated", "torch_build"]

_NOTE = "not verified on hardware"


@record
class DeviceFiles:
    """What a probe found of one kind of device.

    platform: its name. files: the device files found, one per device. sought: what was looked for, in words. visible: environment variables that
    list the devices which a process may use. build: the name in torch's version file that says what torch was built for. score: of a device
    that is present.
    """

    platform: str
    files: Sequence[str]
    sought: str
    visible: Sequence[str]
    build: str
    score: int = 50


def emulated(environ: Mapping[str, str], platform: str) -> bool:
    """True when LLMX_<PLATFORM>_EMULATE is 1: the platform's own code on torch's CPU device."""
    return environ.get(f"LLMX_{platform.upper()}_EMULATE", "") == "1"


def detect_devices(environ: Mapping[str, str], found: DeviceFiles) -> Detection:
    """Present when there are devices, one of them is visible, and the installed torch was built for them; or when emulation is asked for."""
    version, built = torch_build(found.build)
    if emulated(environ, found.platform):
        if version is None:
            return Detection(False, why='emulation runs on torch, which is not installed: pip install "llmx-core[torch]"')
        return Detection(True, 1, 1, f"emulated on torch's CPU device, not its hardware (LLMX_{found.platform.upper()}_EMULATE=1)")
    if not found.files:
        return Detection(False, score=found.score, why=f"no device: {found.sought}")
    count = len(found.files)
    for name in found.visible:
        if name in environ:
            listed = [entry for entry in environ[name].split(",") if entry.strip()]
            if not listed or listed[0].strip() == "-1":
                return Detection(False, score=found.score, why=f"{name}={environ[name]!r} hides all devices ({count})")
            count = min(count, len(listed))
    devices = f"{count} device{'' if count == 1 else 's'} ({', '.join(found.files[:4])}{', ...' if len(found.files) > 4 else ''})"
    if version is None:
        return Detection(False, count, found.score, f"{devices}, but torch is not installed")
    if built is None:
        return Detection(False, count, found.score, f"{devices}, but the installed torch {version} is not the build for {found.platform}")
    return Detection(True, count, found.score, f"{devices}, torch {version} for {found.build} {built}; {_NOTE}")


def torch_build(field: str) -> tuple[str | None, str | None]:
    """(torch's version, what `field` of its version file says), None for what is not there. torch is not imported."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return "of unknown version", None
    return _value(text, "__version__") or "of unknown version", _value(text, field)


def _value(text: str, name: str) -> str | None:
    match = re.search(rf"^{re.escape(name)}(?:\s*:[^=\n]+)?\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None

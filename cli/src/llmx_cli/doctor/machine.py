"""Checks of the machine: processor, memory, cache folders, the port. `root` is where proc and sys are."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from llmx.config import EngineConfig
from llmx.errors import ConfigError, LlmxError
from llmx_cli.doctor.finding import Finding

__all__ = ["check_cache", "check_cpu", "check_memory", "check_port"]

_NEEDED = ("ssse3", "sse4_1", "sse4_2", "popcnt", "cx16")  # x86-64-v2: numpy does not start without
_FAST = ("avx2", "fma", "f16c")


def check_cpu(root: Path = Path("/")) -> Iterator[Finding]:
    """Instructions of x86-64 processors; other machines have no such levels."""
    flags = _flags(root)
    if flags is None:
        yield Finding("processor", "ok", platform.machine())
        return
    missing, slow = [[name for name in names if name not in flags] for names in (_NEEDED, _FAST)]
    where = str(root / "proc/cpuinfo")
    if missing:
        what = f"the processor lacks {', '.join(missing)}: x86-64-v2 is needed (2009 and newer; in a virtual machine, a CPU model that has it)"
        yield Finding("processor", "error", what, where, "qemu-system-x86_64 -cpu host, or another machine")
    elif slow:
        what = f"the processor lacks {', '.join(slow)}: kernels run at the portable level, several times slower"
        yield Finding("processor", "warning", what, where, "qemu-system-x86_64 -cpu host, or another machine")
    else:
        yield Finding("processor", "ok", "x86-64 with AVX2" + (" and AVX-512" if "avx512f" in flags else ""))


def _flags(root: Path) -> set[str] | None:
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), None)


def check_memory(config: EngineConfig, user_set: list[str], root: Path = Path("/")) -> Iterator[Finding]:
    """Whether the model and one full request fit into what is free here, the cgroup's limit included."""
    from llmx.engine.explain import explain
    from llmx.engine.memory import available_bytes, cgroup_limit

    free, limit = available_bytes(root), cgroup_limit(root)
    try:
        memory = explain(config, user_set, free).memory
    except LlmxError as error:
        yield Finding("model", "error", str(error), config.model.source, "llmx list")
        return
    held = f"weights {_mb(memory.weight_bytes)} and {_mb(memory.kv_bytes_per_request)} of KV per request of {memory.max_model_len} tokens"
    if memory.requests:
        yield Finding("memory", "ok", f"{_mb(free)} free: {held}; {memory.requests} full requests fit")
        return
    where = f"cgroup limit of {_mb(limit)}" if limit is not None else "/proc/meminfo"
    fitting = _fitting_length(config, user_set, free)
    fix = f"llmx serve --max-model-len {fitting}" if fitting else "give it more: docker run -m, MemoryMax= of systemd, resources.limits.memory of Kubernetes"
    yield Finding("memory", "error", f"{_mb(free)} free, not enough for {held}", where, fix)


def _fitting_length(config: EngineConfig, user_set: list[str], free: int) -> int:
    """The largest power of two of tokens of which a request fits; 0: none from 256 on."""
    from llmx.engine.explain import explain

    length = 1 << 17
    while length >= 256:
        try:
            if explain(replace(config, model=replace(config.model, max_model_len=length)), user_set, free).memory.requests:
                return length
        except ConfigError:
            pass  # longer than the model's context
        length //= 2
    return 0


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def check_cache(config: EngineConfig) -> Iterator[Finding]:
    """Folders that are written to."""
    from llmx.engine.model_store import hub_folder

    model = config.model
    for name, folder, flag in (("cache", model.cache_dir, "--cache-dir"), ("hub cache", hub_folder(model), "--download-dir")):
        if folder is None:
            continue
        reason = _unwritable(Path(folder).expanduser())
        if reason:
            yield Finding(name, "error", f"{folder} cannot be written to: {reason}", folder, f"llmx serve {flag} DIR, with a folder of yours")
        else:
            yield Finding(name, "ok", folder)


def _unwritable(folder: Path) -> str:
    """Why a file cannot be made in `folder`, or below its first parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def check_port(config: EngineConfig) -> Iterator[Finding]:
    """The port that a server would listen on."""
    from llmx_server.listen import bind

    server = config.server
    try:
        bind(server.host, server.port).close()
    except ConfigError as error:
        fix = f"llmx serve --port {_free_port(server.host, server.port)}; ss -ltnp 'sport = :{server.port}' shows who has it"
        yield Finding("port", "error", str(error), f"{server.host}:{server.port}", fix)
    else:
        yield Finding("port", "ok", f"{server.host}:{server.port} is free")


def _free_port(host: str, port: int) -> int:
    from llmx_server.listen import bind

    for candidate in range(port + 1, min(port + 100, 65536)):
        try:
            bind(host, candidate).close()
        except ConfigError:
            continue
        return candidate
    return 0

"""What this machine gives: threads, instruction-set level, memory; and what the options of the platform change of it."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

from llmx.config import EngineConfig, PlatformConfig
from llmx.errors import ConfigError, PlatformError
from llmx.hooks import EnvVar
from llmx.platform.cgroup import limit_folders
from llmx_cpu.native import ISA_NAMES, best_isa

__all__ = [
    "ACTIVATIONS",
    "FINE_POSITIONS",
    "STEP_TOKENS",
    "VARIABLES",
    "activation_mode",
    "chosen_isa",
    "cpu_model",
    "fusion_on",
    "option",
    "prefault_on",
    "thread_budget",
    "thread_count",
    "total_bytes",
    "turn_us",
    "usable_cpus",
]

# Modes and what a plan says of them. auto: int16 for the first positions of a sequence, where every later token looks and short
# chats take place; int8, which is faster with many rows, for the rest.
ACTIVATIONS = {"auto": "int16+int8", "int16": "int16", "int8": "int8"}
FINE_POSITIONS = 64
_TURN_US = "3000"  # that an engine computes at least before it lets another: so long that caches pay off
VARIABLES = (
    EnvVar("LLMX_CPU_ISA", "auto", f"instruction-set level: auto, {', '.join(ISA_NAMES)}"),
    EnvVar("LLMX_CPU_THREADS", "", "threads of the pool; the usable CPUs when empty (--threads goes first)"),
    EnvVar("LLMX_CPU_ACT", "auto", f"inputs of quantised weights: int16 (near float32), int8 (faster), auto (int16 to position {FINE_POSITIONS})"),
    EnvVar("LLMX_CPU_FUSE", "1", "0: run every op alone; results are the same bits"),
    EnvVar("LLMX_CPU_TURN_US", _TURN_US, "several models in one server: microseconds that one computes at least before the next; 0: all at once"),
    EnvVar("LLMX_CPU_PREFAULT", "0", "1: the KV cache takes all its memory at the start, not when a page is first written"),
)
STEP_TOKENS = 1024  # token rows per step: longer chunks read no weight less often than the caches allow


def option(config: PlatformConfig, name: str) -> str:
    """Value of a platform variable, "" when it is not set."""
    return dict(config.options).get(name, "").strip()


def usable_cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use: its affinity, cut to the quota of each of its control groups (v2 cpu.max, v1 cfs)."""
    cpus = len(os.sched_getaffinity(0))
    for version, folder in limit_folders("cpu", root):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota.strip() not in ("max", "-1"):
                cpus = min(cpus, max(1, -(-int(quota) // int(period))))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return cpus


def thread_count(config: EngineConfig) -> int:
    """Threads of the pool: platform.threads, else LLMX_CPU_THREADS, else the usable CPUs; of each rank its part. Raises ConfigError outside 1..1024."""
    text = option(config.platform, "LLMX_CPU_THREADS")
    if config.platform.threads is None and text and not text.isdigit():
        raise ConfigError(f"LLMX_CPU_THREADS is {text!r}: give a number of threads, 1 to 1024", field="LLMX_CPU_THREADS")
    threads = config.platform.threads if config.platform.threads is not None else int(text or usable_cpus())
    if not 1 <= threads <= 1024:
        raise ConfigError(f"threads is {threads}: give 1 to 1024", field="platform.threads")
    return max(1, threads // config.platform.tensor_parallel_size)


def thread_budget(config: EngineConfig) -> int:
    """Threads that compute at most in all engines of the server together; 0 where this one takes no turns (csrc/turns.h).

    Ranks of one engine wait for each other within a step, so they take none. Raises ConfigError as thread_count and turn_us.
    """
    shared, turns = config.platform.shared_threads, turn_us(config) > 0
    if shared is None or config.platform.tensor_parallel_size > 1 or not turns:
        return 0
    return shared[1] or thread_count(replace(config, platform=replace(config.platform, threads=None)))


def turn_us(config: EngineConfig) -> int:
    """Microseconds that a turn lasts at least, by LLMX_CPU_TURN_US; 0: no turns are taken. Raises ConfigError outside 0..1000000."""
    text = option(config.platform, "LLMX_CPU_TURN_US") or _TURN_US
    if not text.isdigit() or int(text) > 1_000_000:
        raise ConfigError(f"LLMX_CPU_TURN_US is {text!r}: give microseconds, 0 to 1000000", field="LLMX_CPU_TURN_US")
    return int(text)


def chosen_isa(config: EngineConfig) -> str:
    """Instruction-set level: LLMX_CPU_ISA, else the best that the CPU runs. Raises ConfigError, or PlatformError when the CPU lacks it."""
    wanted, best = option(config.platform, "LLMX_CPU_ISA") or "auto", best_isa()
    if wanted == "auto":
        return best
    if wanted not in ISA_NAMES:
        raise ConfigError(f"LLMX_CPU_ISA is {wanted!r}: give auto, {', '.join(ISA_NAMES)}", field="LLMX_CPU_ISA")
    if ISA_NAMES.index(wanted) > ISA_NAMES.index(best):
        raise PlatformError(f"LLMX_CPU_ISA is {wanted!r}, but this CPU runs {best} at most: leave it out or give a lower level")
    return wanted


def fusion_on(config: EngineConfig) -> bool:
    """False with LLMX_CPU_FUSE=0. Raises ConfigError for anything but 0 and 1."""
    return _switch(config, "LLMX_CPU_FUSE", "1")


def prefault_on(config: EngineConfig) -> bool:
    """Whether the KV cache takes its memory at the start, by LLMX_CPU_PREFAULT=1. Raises ConfigError for anything but 0 and 1."""
    return _switch(config, "LLMX_CPU_PREFAULT", "0")


def _switch(config: EngineConfig, name: str, default: str) -> bool:
    text = option(config.platform, name) or default
    if text not in ("0", "1"):
        raise ConfigError(f"{name} is {text!r}: give 0 or 1", field=name)
    return text == "1"


def activation_mode(config: EngineConfig) -> str:
    """How the inputs of quantised weights are rounded: LLMX_CPU_ACT, one of ACTIVATIONS. Raises ConfigError for anything else."""
    mode = option(config.platform, "LLMX_CPU_ACT") or "auto"
    if mode not in ACTIVATIONS:
        raise ConfigError(f"LLMX_CPU_ACT is {mode!r}: give {', '.join(ACTIVATIONS)}", field="LLMX_CPU_ACT")
    return mode


def cpu_model() -> str:
    """Name of the CPU as /proc/cpuinfo has it, else the machine's."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def total_bytes() -> int:
    """Physical memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""Fault injection: a test-only platform, found by entry point like any other, whose executor breaks on demand.

It is the null platform but for the faults. A prompt that holds a fault's token id causes it in the step that it joins:

KILL   the engine process kills itself      HANG   the step never ends
NAN    the row's logits are NaN             MEMORY the step raises MemoryError

With `fuses` (a folder) each of KILL, HANG and MEMORY works once; without, every time. `step_s` makes each step that long,
`start` breaks the start: "memory" raises MemoryError when the KV cache is made, "slow" takes for ever to load.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["HANG", "KILL", "MEMORY", "NAN", "faulty", "trimming"]

KILL, HANG, NAN, MEMORY = 1011, 1012, 1013, 1014

_PLUGIN = f'''
import os
import signal
import time
from pathlib import Path

from llmx.executor import GroupNeed
from llmx.executor.null import NullExecutor
from llmx.hooks import Detection, DeviceCaps, EnvVar, ImplDef, PlatformInfo, hookimpl

KILL, HANG, NAN, MEMORY = {KILL}, {HANG}, {NAN}, {MEMORY}


class FaultyExecutor(NullExecutor):
    def __init__(self, needs, options, **sizes):
        super().__init__(needs, nan_tokens=frozenset({{NAN}}), **sizes)
        self.fuses = options.get("LLMX_FAULTY_FUSES", "")
        self.step_s = float(options.get("LLMX_FAULTY_STEP_S", "0"))
        self.broken_start = options.get("LLMX_FAULTY_START", "")

    def load(self, plan, progress):
        while self.broken_start == "slow":
            time.sleep(0.1)

    def kv_allocate(self, plan):
        if self.broken_start == "memory":
            raise MemoryError("no memory for pages")
        super().kv_allocate(plan)

    def submit(self, step):
        time.sleep(self.step_s)
        for fault in (KILL, HANG, MEMORY):
            if any(fault in joined.tokens for joined in step.joined) and self.armed(str(fault)):
                self.cause(fault)
        return super().submit(step)

    def armed(self, name):
        if not self.fuses:
            return True
        fuse = Path(self.fuses) / name
        burnt = fuse.exists()
        fuse.touch()
        return not burnt

    def cause(self, fault):
        if fault == MEMORY:
            raise MemoryError("injected")
        while fault == HANG:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)


class FaultyPlatform:
    @hookimpl
    def llmx_platform_info(self):
        return PlatformInfo("faulty", "none", (1, 1), "llmx-platform-faulty")

    @hookimpl
    def llmx_device_caps(self, config):
        return DeviceCaps("faulty", frozenset({{"f32"}}), frozenset({{"batch_invariant"}}), 1, 1 << 30)

    @hookimpl
    def llmx_op_kernels(self, config):
        from llmx.program.kinds import core_registry

        return [ImplDef((kind,), "faulty", "faulty/1", "llmx_faulty", priority=1) for kind in core_registry().kinds()]

    @hookimpl
    def llmx_env_vars(self):
        return [EnvVar(f"LLMX_FAULTY_{{name}}", "", "a fault of the tests") for name in ("FUSES", "STEP_S", "START")]

    @hookimpl
    def llmx_executor(self, config, bundle):
        spec = next(iter(bundle.model.states.values())).spec
        needs = [GroupNeed(spec, tuple(bundle.model.states), 16, 128, "i64")]
        tokens = config.scheduler.max_num_batched_tokens or 2048
        sizes = {{"vocab_size": bundle.vocab_size, "max_tokens": tokens, "max_requests": config.scheduler.max_num_seqs}}
        return FaultyExecutor(needs, dict(config.platform.options), **sizes)


def detect(environ):
    return Detection("LLMX_FAULTY_STEP_S" in environ, count=1, score=1, why="for tests")
'''


def faulty(folder: Path, *, fuses: bool = True, step_s: float = 0.0, start: str = "") -> dict[str, str]:
    """Write the platform with its metadata under `folder`; the environment in which a process finds it, for `--platform faulty`."""
    (folder / "llmx_faulty.py").write_text(_PLUGIN)
    info = folder / "llmx_platform_faulty-0.1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llmx-platform-faulty\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[llmx.probes]\nfaulty = llmx_faulty:detect\n[llmx.platforms]\nfaulty = llmx_faulty:FaultyPlatform\n")
    environ = {"PYTHONPATH": str(folder), "LLMX_FAULTY_STEP_S": str(step_s)}
    if fuses:
        (folder / "fuses").mkdir(exist_ok=True)
        environ["LLMX_FAULTY_FUSES"] = str(folder / "fuses")
    return {**environ, **({"LLMX_FAULTY_START": start} if start else {})}


_TRIM = '''
"""A plugin without hooks: on SIGUSR1 the engine process collects garbage and gives free memory back."""

import ctypes
import gc
import signal
import threading


def trim(number, frame):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGUSR1, trim)
'''


def trimming(folder: Path) -> dict[str, str]:
    """Write a plugin that trims the engine's memory on SIGUSR1; the environment in which a process finds it."""
    (folder / "llmx_trim.py").write_text(_TRIM)
    info = folder / "llmx_trim-0.1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llmx-trim\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[llmx.plugins]\ntrim = llmx_trim\n")
    return {"PYTHONPATH": str(folder)}

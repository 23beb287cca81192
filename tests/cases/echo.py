"""A test-only platform whose model says what it is told: the answer to a prompt is the prompt's own text, then EOS.

With a chat template the answer is the last user message. So any text, stop string or character can be forced without luck.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["install"]

_PLUGIN = '''
"""Hooks of the echo platform, on the null executor."""

import numpy as np

from llmx.executor import GroupNeed
from llmx.executor.null import NullExecutor
from llmx.hooks import Detection, DeviceCaps, ImplDef, PlatformInfo, hookimpl

START, END, USER = 1, 2, 4093  # SmolLM2: <|im_start|>, <|im_end|>, "user"


class EchoModel:
    nan_tokens = frozenset({13})  # a sequence that holds this id fails in the forward
    fails_later = {14: 13}  # so a prompt that holds 14 fails in its answer, after its first token

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def target(self, prompt):
        if START not in prompt:
            return prompt
        begin = max(i for i in range(len(prompt) - 1) if prompt[i] == START and prompt[i + 1] == USER) + 3
        return prompt[begin : prompt.index(END, begin)]

    def favourite(self, history):
        return END

    def logits(self, history, prompt_len):
        wanted = [*(self.fails_later.get(token, token) for token in self.target(history[:prompt_len])), END]
        noise = np.random.default_rng(len(history)).standard_normal(self.vocab_size, dtype=np.float32)
        noise[wanted[min(len(history) - prompt_len, len(wanted) - 1)]] = 30.0
        return noise


class EchoPlatform:
    @hookimpl
    def llmx_platform_info(self):
        return PlatformInfo("echo", "none", (1, 1), "llmx-platform-echo")

    @hookimpl
    def llmx_device_caps(self, config):
        return DeviceCaps("echo", frozenset({"f32"}), frozenset({"batch_invariant"}), 1, 1 << 30)

    @hookimpl
    def llmx_op_kernels(self):
        from llmx.program.kinds import core_registry

        return [ImplDef((kind,), "echo", "echo/1", "llmx_echo", priority=1) for kind in core_registry().kinds()]

    @hookimpl
    def llmx_executor(self, config, bundle):
        spec = next(iter(bundle.model.states.values())).spec
        needs = [GroupNeed(spec, tuple(bundle.model.states), 16, 128, "i64")]
        executor = NullExecutor(needs, vocab_size=bundle.vocab_size, max_requests=config.scheduler.max_num_seqs)
        executor.model = EchoModel(bundle.vocab_size)
        return executor


def detect(environ):
    return Detection(False, why="for tests; only when named") if environ.get("ECHO") != "1" else Detection(True, count=1, score=1, why="tests")
'''


def install(folder: Path) -> dict[str, str]:
    """Write the platform with its metadata under `folder`; the environment in which a process finds it."""
    (folder / "llmx_echo.py").write_text(_PLUGIN)
    info = folder / "llmx_platform_echo-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llmx-platform-echo\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[llmx.probes]\necho = llmx_echo:detect\n[llmx.platforms]\necho = llmx_echo:EchoPlatform\n")
    return {"PYTHONPATH": str(folder), "ECHO": "1"}

"""An engine for server tests: the AsyncEngine interface over a byte tokenizer, answering from a script that a test sets.

It is a small engine, not a recording: it honours n, max_tokens, stop strings, logprobs and aborts, so that what the server
makes of them can be compared between streamed and whole answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from llmx.engine.outputs import CompletionOutput, EngineStats, Logprob, RequestOutput, TokenLogprobs
from llmx.errors import EngineDead, RequestError
from llmx.sampling_params import SamplingParams

EOS = 256
BOS = 257
SPECIAL = {EOS: "<|end|>", BOS: "<|start|>"}
VOCAB = 258


class ByteTokenizer:
    """One token per UTF-8 byte, and two special ones; adds no BOS."""

    special_ids = frozenset(SPECIAL)
    names = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS]}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        parts = [SPECIAL[i].encode() if i in SPECIAL else bytes([i]) for i in ids if not (skip_special_tokens and i in SPECIAL)]
        return b"".join(parts).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return SPECIAL[token].encode() if token in SPECIAL else bytes([token])

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def is_special(self, token: int) -> bool:
        return token in SPECIAL


class PlainTemplate:
    """`role: content` lines; refuses a conversation that starts with the assistant, as many real templates do."""

    sources = {"default": "{{ messages }}"}

    def variables(self, tools: bool = False) -> frozenset[str]:
        return frozenset({"messages", "mood", "documents", "tools", "add_generation_prompt"})

    def render(
        self, messages: list[dict[str, Any]], tools: Any = None, add_generation_prompt: bool = True, continue_final_message: bool = False, **kwargs: Any
    ) -> str:
        if messages[0]["role"] == "assistant":
            raise RequestError("chat template: conversation must not start with the assistant", field="messages")
        text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
        if continue_final_message:
            text = text.removesuffix("\n")
        extra = f"[{kwargs['mood']}]" if "mood" in kwargs else ""
        return text + extra + ("assistant: " if add_generation_prompt else "")


class FakeSteering:
    """Takes note of what is asked; refused: raised instead."""

    def __init__(self) -> None:
        self.paused = False
        self.asked: list[tuple[Any, ...]] = []
        self.refused: Exception | None = None
        self.adapters: dict[str, dict[str, Any]] = {}
        self.loads: dict[str, Any] = {}

    async def pause(self, mode: str = "keep") -> None:
        self._note("pause", mode)
        self.paused = True

    async def resume(self) -> None:
        self._note("resume")
        self.paused = False

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> dict[str, Any]:
        return self._note("reset_prefix_cache", reset_running_requests, blocks_dropped=7, blocks_in_use=2)

    async def start_profile(self, folder: str) -> dict[str, Any]:
        return self._note("start_profile", folder)

    async def stop_profile(self) -> dict[str, Any]:
        return self._note("stop_profile", files=["/p/a.trace.json", "/p/a.prof"], steps=5)

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False, pin: bool = False) -> dict[str, Any]:
        self.adapters[name] = self._note("load_adapter", name, path, in_place, pin, name=name, path=path, rank=4, digest="00", pinned=pin, bytes=100)
        return self.adapters[name]

    async def resolve_adapter(self, name: str) -> bool:
        if name.startswith("found"):
            self.adapters[name] = {"name": name, "path": f"/{name}", "rank": 4, "digest": "00", "pinned": False, "bytes": 1}
        return name in self.adapters

    async def unload_adapter(self, name: str) -> None:
        self._note("unload_adapter", name)
        del self.adapters[name]

    def _note(self, *asked: Any, **facts: Any) -> dict[str, Any]:
        self.asked.append(asked)
        if self.refused:
            raise self.refused
        return facts


@dataclass
class Info:
    name: str = "fake-model"
    served_names: tuple[str, ...] = ("fake-model", "alias/with.dots")
    max_model_len: int = 256
    vocab_size: int = VOCAB
    platform: str = "null"
    platform_why: str = "named"
    num_kv_blocks: int = 64
    kv_bytes: int = 1 << 20
    load_s: float = 0.1
    dtype: str = "float32"
    kv_dtype: str = "float32"
    pooling: Any = None
    warnings: tuple[str, ...] = ()


@dataclass
class FakeEngine:
    """answer: text for a prompt's ids (None ends with EOS after it). delay_s: between tokens. chunk: tokens per output.

    fail_at: output number at which `error` is raised. gate: when set, generation waits for it before every token.
    """

    answer: Callable[[list[int]], str] = lambda ids: "hello world"
    info: Info = field(default_factory=Info)
    delay_s: float = 0.0
    chunk: int = 1
    better: int = -1  # index of an answer whose tokens are more likely than those of the others
    fail_at: int | None = None
    error: Exception = field(default_factory=lambda: EngineDead("the engine process ended with signal 9"))
    gate: asyncio.Event | None = None
    start_error: Exception | None = None
    start_delay_s: float = 0.0
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    chat_template: PlainTemplate = field(default_factory=PlainTemplate)
    sampling_defaults: dict[str, Any] = field(default_factory=dict)
    alive: bool = True
    closed: bool = False
    killed: bool = False
    why: str = ""
    aborted: list[str] = field(default_factory=list)
    running: dict[str, list[int]] = field(default_factory=dict)
    started_ids: list[str] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    loras: list[str] = field(default_factory=list)
    steering: FakeSteering = field(default_factory=FakeSteering)
    counts: EngineStats = field(default_factory=lambda: EngineStats(kv_blocks_total=64))

    async def start(self, on_progress: Any = None) -> None:
        await asyncio.sleep(self.start_delay_s)
        if self.start_error:
            raise self.start_error

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        add_special_tokens: bool = True,
        cache_salt: str = "",
        lora: str = "",
        timeout_s: float | None = None,
        replay: bool = False,
    ) -> AsyncGenerator[RequestOutput, None]:
        assert request_id not in self.running, "two running requests share an id"
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self.running[request_id] = ids
        self.started_ids.append(request_id)
        self.params.append(params)
        self.loras.append(lora)
        finished = False
        try:
            async for output in self._outputs(ids, params, request_id):
                finished = output.finished
                yield output
        finally:
            del self.running[request_id]
            if not finished:
                self.aborted.append(request_id)

    async def _outputs(self, ids: list[int], params: SamplingParams, request_id: str) -> AsyncGenerator[RequestOutput, None]:
        text = self.answer(ids)
        writers = [_Writer(self.tokenizer, index, text + (f" #{index}" if index else ""), params, index == self.better) for index in range(params.n)]
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = [None, *(_logprobs(self.tokenizer, token, params.prompt_logprobs) for token in ids[1:])]
        self.counts.prompt_tokens += len(ids)
        number = 0
        while True:
            await asyncio.sleep(self.delay_s)
            if self.gate:
                await self.gate.wait()
            if self.closed:
                raise EngineDead(self.why)
            if self.fail_at == number:
                raise self.error
            outputs = [writer.step(self.chunk) for writer in writers]
            self.counts.generation_tokens += sum(len(answer.new_token_ids) for answer in outputs)
            finished = all(answer.finished for answer in outputs)
            cached = min(len(ids) - 1, 4)
            yield RequestOutput(request_id, None, ids, outputs, finished, prompt_logprobs, cached)
            if finished:
                return
            number += 1

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def stats(self, *, kv_map: bool = False) -> EngineStats:
        if not self.alive:
            raise EngineDead("the engine process ended")
        self.counts.requests_running = len(self.running)
        return self.counts

    async def health(self) -> tuple[bool, str]:
        return (True, "") if self.alive else (False, "the engine process ended with signal 9")

    async def drain(self, timeout_s: float) -> None:
        while self.running:
            await asyncio.sleep(0.01)

    async def close(self, why: str = "the engine was closed") -> None:
        self.closed = True
        self.why = why

    def kill(self) -> None:
        self.killed = True

    def another(self) -> FakeEngine:
        return replace(self, closed=False, killed=False, running={}, aborted=[])

    @property
    def num_running(self) -> int:
        return len(self.running)


class _Writer:
    """One answer: the scripted text token by token, then EOS."""

    def __init__(self, tokenizer: ByteTokenizer, index: int, text: str, params: SamplingParams, better: bool) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._logprob = -0.25 if better else -0.5
        self._todo = [*text.encode(), EOS]
        self._done = CompletionOutput(index, logprobs=[] if params.logprobs is not None else None)

    def step(self, count: int) -> CompletionOutput:
        done = self._done
        new: list[int] = []
        before = done.text
        if self._params.max_tokens == 0:
            done.finish_reason = "length"
        while len(new) < count and not done.finished:
            token = self._todo.pop(0)
            new.append(token)
            done.token_ids.append(token)
            if done.logprobs is not None:
                done.logprobs.append(_logprobs(self._tokenizer, token, self._params.logprobs or 0, self._logprob))
            if token == EOS:
                done.finish_reason = "stop"
            elif self._params.max_tokens is not None and len(done.token_ids) >= self._params.max_tokens:
                done.finish_reason = "length"
            self._show()
        return CompletionOutput(
            done.index, done.text, list(done.token_ids), None if done.logprobs is None else list(done.logprobs), done.finish_reason, done.stop_reason, None,
            done.text[len(before) :], new,
        )  # fmt: skip

    def _show(self) -> None:
        done = self._done
        full = self._tokenizer.decode(done.token_ids)
        for stop in self._params.stop:
            if stop in full:
                done.text = full[: full.index(stop)]
                done.finish_reason, done.stop_reason = "stop", stop
                kept = len(done.text.encode())
                del done.token_ids[kept:]
                if done.logprobs is not None:
                    del done.logprobs[kept:]
                return
        if done.finished:
            done.text = full
            return
        held = max((size for stop in self._params.stop for size in range(1, len(stop)) if full.endswith(stop[:size])), default=0)
        shown = full[: len(full) - held]
        done.text = shown.rstrip("\ufffd") if len(shown) > len(done.text) else done.text


def _logprobs(tokenizer: ByteTokenizer, token: int, num_top: int, logprob: float = -0.5) -> TokenLogprobs:
    def one(number: int, value: float, rank: int) -> Logprob:
        return Logprob(value, rank, tokenizer.token_text(number), number, tokenizer.token_bytes(number))

    chosen = one(token, logprob, 1)
    top = [chosen, *(one((token + step) % 256, float("-inf") if step == 3 else -1.0 - step, step + 1) for step in range(1, num_top))]
    return TokenLogprobs(chosen, top[:num_top])

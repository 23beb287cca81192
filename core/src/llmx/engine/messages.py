"""Messages between the API process and the engine process, as msgpack arrays. No pickle.

To the engine: Configure on its standard input, then Add, Abort, GetStats, Control, Shutdown over a socket. From it: Headers and Progress, then
Ready or Failed; then Outputs, Rejected, Stats, Controlled. A tag byte tells them apart.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmx.config import EngineConfig
from llmx.engine.outputs import EngineStats
from llmx.pooling_params import PoolingConfig, PoolingParams
from llmx.sampling_params import SamplingParams

__all__ = [
    "Abort",
    "Add",
    "Configure",
    "Control",
    "Controlled",
    "EngineInfo",
    "Failed",
    "FromEngine",
    "GetStats",
    "Headers",
    "Outputs",
    "Progress",
    "Ready",
    "Rejected",
    "SeqOutput",
    "Shutdown",
    "Stats",
    "ToEngine",
    "decoder",
    "encode",
]


class Configure(msgspec.Struct, tag=1, array_like=True):
    """What to start. user_set: dotted paths that the user gave."""

    config: EngineConfig
    user_set: list[str]


class Add(msgspec.Struct, tag=2, array_like=True):
    """A new request. prompt: token ids. pooling: vectors or scores are wanted; second_text: where the second text of a pair begins."""

    id: str
    prompt: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    pooling: PoolingParams | None = None
    second_text: int = -1
    lora: str = ""  # name of an adapter; empty: none


class Abort(msgspec.Struct, tag=3, array_like=True):
    """End a request. index -1: all its answers; reason "stop": a stop string was found, not counted as abort."""

    id: str
    index: int = -1
    reason: str = "abort"


class GetStats(msgspec.Struct, tag=4, array_like=True):
    """Ask for Stats; the token comes back. kv_map: with the state of every block."""

    token: int
    kv_map: bool = False


class Shutdown(msgspec.Struct, tag=5, array_like=True):
    """End the process; running requests are dropped."""


class Control(msgspec.Struct, tag=6, array_like=True):
    """Ask for something that llmx.engine.controls does; the token comes back with Controlled. argument: as `what` needs it."""

    token: int
    what: str
    argument: str = ""


class Progress(msgspec.Struct, tag=1, array_like=True):
    """Long work during the start."""

    what: str
    fraction: float


class Headers(msgspec.Struct, tag=8, array_like=True):
    """What a model's headers say of its text: enough to load the tokenizer while the engine reads the weights.

    path, gguf, eos_ids, cache_dir: of the TokenizerSource; gguf: its metadata are read from `path`. generation: generation_config.json's content.
    """

    path: str
    gguf: bool
    eos_ids: list[int]
    cache_dir: str | None
    generation: dict[str, Any]


class EngineInfo(msgspec.Struct, array_like=True):
    """What the engine is, for the start-up summary and /health. Sizes in tokens, bytes and seconds."""

    name: str
    served_names: list[str]
    architecture: str
    max_model_len: int
    vocab_size: int
    platform: str
    platform_why: str
    other_platforms: list[str]
    device: str
    threads: int
    dtype: str
    kv_dtype: str
    kv_bytes: int
    num_kv_blocks: int
    kv_tokens: int
    max_full_requests: int
    max_num_seqs: int
    max_num_batched_tokens: int
    load_s: float
    plan_hash: str
    numerics: str
    warnings: list[str]
    changes: list[str]
    step_s: float = 0.0  # the largest step, as the warm-up foresees it
    pooling: PoolingConfig | None = None  # of a model that gives vectors or scores
    drafting: str = ""  # the drafter and its settings; empty: none
    adapters: list[dict[str, Any]] = []  # LoRA adapters that were loaded at the start: name, path, rank, digest, pinned, bytes
    thread_budget: int = 0  # threads that compute at most in all engines of the server together; 0: this one shares none


class Ready(msgspec.Struct, tag=2, array_like=True):
    """The engine takes requests."""

    info: EngineInfo


class Failed(msgspec.Struct, tag=3, array_like=True):
    """The start, or the engine, failed. kind: the class in llmx.errors, or "" for a bug, then `detail` is the traceback."""

    kind: str
    message: str
    detail: str = ""


class SeqOutput(msgspec.Struct, array_like=True):
    """News of one answer. lp rows: [chosen, top...] as (ids, logprobs, rank) per new token."""

    id: str
    index: int
    tokens: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    lp: list[tuple[list[int], list[float], int]] | None = None
    prompt_lp: list[tuple[list[int], list[float], int]] | None = None
    pooled: bytes | None = None  # f32 [pooled_rows, W]
    pooled_rows: int = 0
    num_cached: int = 0
    started_s: float = 0.0  # monotonic clock of this machine; 0.0: it never ran
    preemptions: int = 0
    drafted: int = 0  # since the answer began
    accepted: int = 0


class Outputs(msgspec.Struct, tag=4, array_like=True):
    """All news of one step."""

    items: list[SeqOutput]


class Rejected(msgspec.Struct, tag=5, array_like=True):
    """A request that was not taken. kind: the class in llmx.errors."""

    id: str
    kind: str
    message: str
    field: str | None = None
    retry_after_s: int = 1


class Stats(msgspec.Struct, tag=6, array_like=True):
    """Answer to GetStats."""

    token: int
    stats: EngineStats


class Controlled(msgspec.Struct, tag=7, array_like=True):
    """Answer to Control. error: why nothing was done; kind: the class in llmx.errors."""

    token: int
    facts: dict[str, Any] = {}
    error: str | None = None
    kind: str = "RequestError"
    field: str | None = None


ToEngine = Add | Abort | GetStats | Shutdown | Control
FromEngine = Progress | Headers | Ready | Failed | Outputs | Rejected | Stats | Controlled

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Configure | ToEngine | FromEngine) -> bytes:
    """msgpack bytes."""
    return _ENCODER.encode(message)


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder for the union ToEngine or FromEngine; it checks every field's type."""
    return msgspec.msgpack.Decoder(kind)

"""What is compared: the rows of the table, with the floor and the aim of each.

A job is one process: an engine, a model and the engine's options. A row is a workload of an llmx job against the same workload of a
peer's job. Ratios are llmx / peer; where less is better (seconds), a floor is the most that the ratio may be.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROWS", "SERVED", "Floor", "Job", "Row", "chosen"]


@dataclass(frozen=True, order=True)
class Job:
    """One process of one engine. model: a name of make_models; options: the constructor's arguments, as a JSON object."""

    engine: str
    model: str
    options: str = "{}"

    def __str__(self) -> str:
        return f"{self.engine} {self.model}" + ("" if self.options == "{}" else f" {self.options}")


@dataclass(frozen=True)
class Floor:
    """llmx's job must reach `floor` times the peer's rate, and shall reach `aim` times. None: only shown."""

    peer: Job
    floor: float | None = None
    aim: float | None = None


@dataclass(frozen=True)
class Row:
    """limit: which limit of the machine also counts: "read" (70% of it), "compute" (50%), or "" for none. less: seconds, not rates."""

    name: str
    workload: str
    llmx: Job
    floors: tuple[Floor, ...]
    limit: str = ""
    less: bool = False
    asserted: bool = False


def _llmx(model: str, options: str = "{}") -> Job:
    return Job("llmx", model, options)


_Q4_1, _BF16 = _llmx("q4_1"), _llmx("bf16")
_OPENVINO, _LLAMA, _VLLM, _TRANSFORMERS = Job("openvino", "q4_1"), Job("llamacpp", "q4_0"), Job("vllm", "bf16"), Job("transformers", "bf16")
_LONG = '{"max_model_len": 8192}'

ROWS = (
    Row("q4_1.start", "start", _Q4_1, (Floor(_OPENVINO, 0.4), Floor(_LLAMA, None, 2.0)), less=True),
    Row("q4_1.decode1", "decode1", _Q4_1, (Floor(_OPENVINO, 2.5, 3.0), Floor(_LLAMA, 1.8)), "read", asserted=True),
    Row("q4_1.prefill1k", "prefill1k", _Q4_1, (Floor(_OPENVINO, 1.15, 1.3), Floor(_LLAMA)), "compute", asserted=True),
    Row("q4_1.batch8", "batch8", _Q4_1, (Floor(_OPENVINO, 2.0, 3.0),), "compute", asserted=True),
    Row("q4_1.batch32", "batch32", _Q4_1, (Floor(_OPENVINO, 2.0, 2.6),), "compute", asserted=True),
    Row("bf16.decode1", "decode1", _BF16, (Floor(_VLLM, 1.6, 1.8), Floor(Job("llamacpp", "bf16_gguf"), 1.1), Floor(_TRANSFORMERS)), "read", asserted=True),
    Row("bf16.prefill1k", "prefill1k", _BF16, (Floor(_VLLM, 1.0, 1.15), Floor(_TRANSFORMERS)), "compute", asserted=True),
    Row("bf16.batch32", "batch32", _BF16, (Floor(_VLLM, 1.8, 2.2), Floor(_TRANSFORMERS)), "compute", asserted=True),
    Row("q4_1.decode4k", "decode4k", _llmx("q4_1", _LONG), (Floor(Job("llamacpp", "q4_1"), 1.3),), "read"),
    Row(
        "q4_1.decode8k_int8_kv",
        "decode8k",
        _llmx("q4_1", '{"max_model_len": 8192, "kv_cache_dtype": "int8"}'),
        (Floor(_llmx("q4_1", _LONG), 1.15, 1.25),),
    ),
    Row("gemma.decode1", "decode1", _llmx("gemma"), (Floor(Job("llamacpp", "gemma"), 1.2), Floor(Job("openvino", "gemma"), 1.2)), "read"),
    Row("gemma.prefill1k", "prefill1k", _llmx("gemma"), (Floor(Job("llamacpp", "gemma"), 2.0), Floor(Job("openvino", "gemma"), 1.2)), "compute"),
)

# Rows that need a server: see served.py. Here only their names, for --rows.
SERVED = ("served32", "mixed64")


def chosen(patterns: list[str], peers: set[str]) -> list[Row]:
    """Rows whose name, or its part before or after the dot, is a pattern (all without patterns), with the floors of these peers.

    A row whose peers are all absent stays, without floors: llmx is measured all the same. Raises ValueError for a pattern that no row has.
    """
    for pattern in patterns:
        if pattern not in SERVED and not any(_fits(row, pattern) for row in ROWS):
            raise ValueError(f"no row is called {pattern!r}: {', '.join([row.name for row in ROWS] + list(SERVED))}, or a part of a name, as decode1 or bf16")
    rows = [row for row in ROWS if not patterns or any(_fits(row, pattern) for pattern in patterns)]
    return [
        Row(row.name, row.workload, row.llmx, tuple(f for f in row.floors if f.peer.engine in {*peers, "llmx"}), row.limit, row.less, row.asserted)
        for row in rows
    ]


def _fits(row: Row, pattern: str) -> bool:
    return pattern == row.name or pattern in row.name.split(".")

"""The Plan: what was chosen, in one printable, hashable record. Ranks load exactly this plan or stop.

`hash` covers everything; `numerics` only what changes results, and alone seeds the prefix-hash chain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec

from llmx.hooks.types import Resolution
from llmx.record import record

__all__ = ["KernelChoice", "OpSpec", "Plan"]


@record
class OpSpec:
    """What `supports` of an ImplDef is asked about: one op of one Program.

    quants: the distinct storages of its weights, e.g. ("q4_1",). rows, cols: of the weight (0: none). kv_dtype: of the pages
    that it reads or writes ("": none). dtype: of values between ops. bias: whether a weight has one.
    """

    kind: str
    attrs: Any
    quants: tuple[str, ...] = ()
    rows: int = 0
    cols: int = 0
    kv_dtype: str = ""
    dtype: str = "f32"
    bias: bool = False

    def __str__(self) -> str:
        size = f" {self.rows}x{self.cols}" if self.cols else f" {self.rows}" if self.rows else ""
        quants = f" {'+'.join(self.quants)}" if self.quants else ""
        return f"{self.kind}{size}{quants}" + (f" kv={self.kv_dtype}" if self.kv_dtype else "")


@record
class KernelChoice:
    """The implementation of ops[first : first + len(resolution.kinds)] of a Program."""

    program: str
    first: int
    resolution: Resolution


@record
class Plan:
    """One engine's choices. facts: what the numerics depend on (ISA level, dtypes, KV geometry), by name."""

    platform: str
    why: str
    distributions: tuple[tuple[str, str], ...]
    config: Mapping[str, Any]
    model_digest: str
    facts: tuple[tuple[str, str], ...]
    kernels: tuple[KernelChoice, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form with both hashes."""
        return {**asdict(self), "hash": self.hash, "numerics": self.numerics}

    @property
    def hash(self) -> str:
        """sha256 of the canonical JSON: what ranks compare."""
        return hashlib.sha256(msgspec.json.encode(self, enc_hook=str, order="sorted")).hexdigest()

    @property
    def numerics(self) -> str:
        """sha256 of what changes results."""
        chosen = sorted({(str(k.resolution.kinds), k.resolution.provider, k.resolution.target) for k in self.kernels})
        return _digest({"model": self.model_digest, "facts": self.facts, "kernels": chosen, "distributions": self.distributions})

    @property
    def shared(self) -> str:
        """sha256 of what all ranks of an engine have in common: all but the shapes of their shares."""
        kernels = [(k.program, k.first, k.resolution.kinds, k.resolution.provider, k.resolution.target) for k in self.kernels]
        return _digest([self.platform, self.distributions, self.config, self.model_digest, self.facts, kernels])

    def with_facts(self, **facts: str) -> Plan:
        """A copy with more facts."""
        return replace(self, facts=tuple(sorted({**dict(self.facts), **facts}.items())))


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()

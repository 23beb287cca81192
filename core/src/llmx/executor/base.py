"""The Executor protocol: everything the engine asks of the side that owns the device.

One thread calls an executor. Steps are FIFO. `submit` may run the forward at once, on a thread, or on a device; at most
`limits.max_inflight` tickets are outstanding. Changing this file needs an ADR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmx.batch import Step, StepOutput
from llmx.kv.spec import GroupNeed, KVPlan
from llmx.record import record

__all__ = ["Control", "Executor", "Late", "Limits", "Progress", "Reply", "Ticket"]

Progress = Callable[[str, float], None]  # (what, fraction 0..1), called now and then during long work


@record
class Limits:
    """What an executor can take in one step. Fixed after `load`.

    features: late_mask, host_logits (see Late), host_busy, device_drafts (llmx.executor.draft_shape), collectives (several ranks), lora,
    lora.embeddings and lora.fusions (llmx.executor.adapters). Reserved, so that nobody gives them another meaning: ahead_drafts, kv.arena, kv.layerwise.
    """

    max_tokens: int  # token rows per step
    max_requests: int  # slots
    max_inflight: int = 1  # tickets submitted and not collected
    buckets: tuple[int, ...] | None = None  # token rows a step is padded to; None: any
    quanta: int = 1  # chunk lengths are best a multiple of this
    abis: frozenset[str] = frozenset()  # kernel abis it can call; empty: those of its own platform's kernels
    features: frozenset[str] = frozenset()  # by name, see above

    def has(self, feature: str) -> bool:
        """True when the executor declares `feature`."""
        return feature in self.features


@dataclass(slots=True)
class Ticket:
    """Receipt of one submitted Step. It keeps its own slot-to-request list: a slot may be reused in the next Step."""

    seq: int
    owners: tuple[int, ...] = ()  # slots of the Step's rows, in its order
    payload: Any = None  # the executor's own
    more: bool = True  # another step may be submitted behind it; False: it pays to collect this one first, whatever max_inflight says


@dataclass(slots=True)
class Late:
    """What a late Step waits for. Written by the structured-output stage; rows in the order of Step.samples' rows."""

    mask: np.ndarray | None = None  # u32 [rows, ceil(V / 32)], bit v & 31 of word v >> 5: token v may be drawn
    open: np.ndarray | None = None  # bool [rows]: True: no mask for this row
    drop: np.ndarray | None = None  # bool [rows]: True: the row's request ended; compute nothing for it
    host_logits: Callable[[np.ndarray], np.ndarray] | None = None  # f32 [rows, V] -> the same, on the engine thread; samples of one head row get equal rows


@record
class Control:
    """A request between steps: lora_add, lora_remove, sleep, wake, profile, stats. Reserved: kv_export, kv_import."""

    kind: str
    args: dict[str, Any] = field(default_factory=dict)


@record
class Reply:
    """Answer to a Control. ok False: `error` says why, nothing was changed."""

    ok: bool
    value: Any = None
    error: str = ""


@runtime_checkable
class Executor(Protocol):
    """Owns device buffers, pages, the lowered Program and sampling. Calls come in the order written here.

    One with the feature `collectives` also has connect(communicator), called once before `load` where it is one of several ranks
    (llmx.hooks.Communicator).
    """

    limits: Limits

    def load(self, plan: Any, progress: Progress) -> None:
        """Load and pack the weights of the Model given at construction, as `plan` (llmx.platform.plan.Plan) says."""
        ...

    def kv_needs(self) -> list[GroupNeed]:
        """One GroupNeed per KV group, in the order of Step.new_blocks."""
        ...

    def kv_allocate(self, plan: KVPlan) -> None:
        """Allocate the pages. Once; zero-filled."""
        ...

    def warm_up(self, progress: Progress) -> None:
        """Run every bucket once, so that nothing compiles while serving."""
        ...

    def submit(self, step: Step) -> Ticket:
        """Take one Step. An empty Step is legal. Raises only for a bug or a dead device, never for one request."""
        ...

    def release(self, ticket: Ticket, late: Late) -> None:
        """Let the sampling of a late Step run. Only when step.late, once, after the collect of the step before."""
        ...

    def collect(self, ticket: Ticket) -> StepOutput:
        """The result of the oldest outstanding ticket, in submit order."""
        ...

    def control(self, cmd: Control) -> Reply:
        """Do something between steps."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...

"""NativeExecutor: the Executor protocol over the native engine.

A step is one call into C++ on the calling thread; a late one two. A short step is started instead: a thread of the pool leads it while the
engine still does its Python for the step before, and the calling thread joins in when it collects (docs/adr/0024-short-steps-ahead.md).
"""

from __future__ import annotations

import ctypes as C
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np

from llmx.config import EngineConfig
from llmx.errors import PlatformError, ProgramError
from llmx.executor import (
    BLOCK_TOKENS,
    Control,
    GroupNeed,
    KVPlan,
    KVSpec,
    Late,
    Limits,
    LoraPart,
    ModelBundle,
    Progress,
    Reply,
    Step,
    StepOutput,
    Ticket,
    draft_shape,
    hidden_bytes,
    hidden_group,
)
from llmx.hooks import Communicator, DeviceCaps
from llmx.platform.plan import Plan
from llmx.program.ops import State
from llmx_cpu.collectives import MemoryCommunicator
from llmx_cpu.draft import NativeDraft
from llmx_cpu.lora import set_adapter
from llmx_cpu.lower.builder import KINDS, BuiltTape, row_width
from llmx_cpu.lower.tape import ABI, lower
from llmx_cpu.machine import FINE_POSITIONS, STEP_TOKENS, turn_us, usable_cpus
from llmx_cpu.native import ISA_NAMES, Group, StateRecord, call, library
from llmx_cpu.packing import Packer
from llmx_cpu.step_call import StepCall

__all__ = ["NativeExecutor"]

_PAGE_TYPES = {"f32": 0, "bf16": 1, "i8": 2}  # csrc/attention.h
_SHORT_ROWS = 8  # token rows of a step so short that a new request may wait for one more


class NativeExecutor:
    """Runs a Model's main Program, which gives logits or pooled rows, and its drafter's. Built without weights; `load` packs them."""

    def __init__(self, config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle) -> None:
        full = config.model.dtype == "float32"
        self._full = full
        self._page_type = config.page_type
        self._activations = str(caps.props["activations"])
        self._isa, self._threads = str(caps.props["isa"]), int(caps.props["threads"])
        self._turns = (config.platform.shared_threads or ("", 0))[0].encode(), int(caps.props["thread_budget"]), turn_us(config)
        self._bundle = bundle
        self._engine: int | None = None
        self._prefault = bool(caps.props["prefault"])
        self._tape: BuiltTape | None = None
        self._flying = deque[StepCall]()
        self._communicator: MemoryCommunicator | None = None
        self._drafts: NativeDraft | None = None
        self._groups = _groups(bundle)
        self._shape, self._draft_tapes = draft_shape(bundle.model, bundle.draft_mask), list[BuiltTape]()
        self._pooled, self._typed = _pooled(bundle)
        busy = ("host_busy",) if self._threads * config.platform.tensor_parallel_size >= usable_cpus() else ()
        self.limits = Limits(
            max_tokens=config.scheduler.max_num_batched_tokens or STEP_TOKENS,
            max_requests=config.scheduler.max_num_seqs,
            max_inflight=2 if self._runs_ahead(config) else 1,
            abis=frozenset({ABI}),
            features=frozenset({"late_mask", "host_logits", "device_drafts", "lora", "lora.embeddings", "lora.fusions", "collectives", *busy}),
        )
        self._calls = [StepCall(self.limits.max_requests) for _ in range(self.limits.max_inflight)]

    def _runs_ahead(self, config: EngineConfig) -> bool:
        """Whether a step may be started before the one before is known: a thread must be there to lead it, and no draft or neighbour to wait for."""
        alone = config.platform.tensor_parallel_size == 1 and not config.draft.settings and config.draft.method is None
        return self._threads > 1 and alone and not (self._shape or self._pooled or self._typed)

    def connect(self, communicator: Communicator) -> None:
        """Be one of several ranks. Before `load`. Raises PlatformError for a communicator that is not this platform's."""
        if not isinstance(communicator, MemoryCommunicator):
            raise PlatformError(f"the native executor has collectives of its own: {type(communicator).__name__} cannot take their place")
        self._communicator = communicator

    # -- start ---------------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, progress: Progress) -> None:
        """Pack the weights and lower the Program as the plan says. Raises ModelError, ProgramError, PlatformError."""
        model = self._bundle.model
        if "main" not in model.programs:
            raise ProgramError(f"model {self._bundle.name!r} has no program 'main'")
        engine = library().llmx_engine_new(ISA_NAMES.index(self._isa), self._threads)
        if not engine:
            raise PlatformError(f"native executor: {library().llmx_error().decode()}")
        self._engine = engine
        if self._turns[1]:
            library().llmx_engine_turns(engine, *self._turns)  # without them it only computes while others do
        if self._communicator is not None:
            library().llmx_engine_communicator(engine, self._communicator.handle)
        if self._activations == "auto":
            library().llmx_engine_fine_positions(engine, FINE_POSITIONS)
        packer = Packer(engine, self._bundle.weights, self._full, self._activations == "int8", len(model.weights()), progress)
        states = [state for states in self._groups.values() for state in states]

        def lowered(program: str) -> BuiltTape:
            return lower(
                model.programs[program],
                plan.kernels,
                packer,
                states,
                max_positions=self._bundle.max_model_len,
                max_tokens=self.limits.max_tokens,
                max_requests=self.limits.max_requests,
                vocab=self._bundle.vocab_size,
            )

        self._tape = lowered("main")
        self._matrices = packer.matrices
        call("llmx_engine_tape", engine, C.addressof(self._tape.struct))
        for program in self._shape.programs if self._shape else ():
            self._draft_tapes.append(lowered(program))
            call("llmx_engine_draft_tape", engine, C.addressof(self._draft_tapes[-1].struct))
        self._bundle.weights.close()
        progress("weights", 1.0)

    def kv_needs(self) -> list[GroupNeed]:
        """One need per distinct KVSpec, in order of first use."""
        sizes = self._group_bytes()
        if self._groups:
            sizes[hidden_group(self._groups)] += hidden_bytes(self._bundle.model)  # behind the layers
        return [
            GroupNeed(spec, tuple(s.name for s in states), BLOCK_TOKENS, size, self._page_type)
            for (spec, states), size in zip(self._groups.items(), sizes, strict=True)
        ]

    def _group_bytes(self) -> list[int]:
        """Bytes of a block of each group: its layers."""
        return [self._layer_bytes(spec) * len(states) for spec, states in self._groups.items()]

    def _record(self, spec: KVSpec, group: int, layer: int) -> Any:
        return StateRecord(group, _PAGE_TYPES[self._page_type], spec.kv_heads, spec.head_dim, spec.v_head_dim, 0, layer)

    def _layer_bytes(self, spec: KVSpec) -> int:
        record = self._record(spec, 0, 0)
        return int(library().llmx_kv_layer_bytes(C.addressof(record)))

    def kv_allocate(self, plan: KVPlan) -> None:
        """Allocate zero-filled pages."""
        groups, records = (Group * len(plan.groups))(), []
        for index, (to, group, (spec, states)) in enumerate(zip(groups, plan.groups, self._groups.items(), strict=True)):
            to.block_bytes, to.num_blocks = group.need.block_bytes, group.num_blocks
            to.max_blocks = -(-plan.max_model_len // BLOCK_TOKENS) + 1
            records += [self._record(spec, index, i * self._layer_bytes(spec)) for i in range(len(states))]
        self._kv_tokens = min((to.num_blocks - 1 for to in groups), default=0) * BLOCK_TOKENS
        array = (StateRecord * max(1, len(records)))(*records)
        try:
            call("llmx_engine_kv", self._need_engine(), C.addressof(groups), len(groups), C.addressof(array), len(records))
        except PlatformError as error:
            size = f"{plan.total_bytes / 2**20:.0f} MiB"
            remedy = "lower --kv-cache-memory-bytes, or raise the process's memory limit"
            raise PlatformError(f"{size} of KV cache cannot be allocated ({error}): {remedy}") from error
        if self._shape is not None:
            self._drafts = NativeDraft(self._need_engine(), self._draft_tapes, self._shape, plan, self._group_bytes(), self.limits.max_tokens)
        if self._prefault:  # a page of zeros has no memory of its own until it is written
            for index, to in enumerate(groups):
                C.memset(library().llmx_engine_pages(self._need_engine(), index), 0, to.block_bytes * to.num_blocks)

    def warm_up(self, progress: Progress) -> None:
        """Nothing is compiled; the engine's first measured steps touch the memory."""
        progress("warm up", 1.0)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def submit(self, step: Step) -> Ticket:
        """Run the step; of a late one everything up to the head rows. A short one, or one behind others, is started at most."""
        if len(self._flying) == len(self._calls):
            why = f"the native executor takes {len(self._calls)} at a time"
            raise PlatformError(f"step {step.seq} was submitted before step {self._flying[0].step.seq} was collected: {why}")
        if step.encode or (step.draft_k and self._drafts is None) or any(want is not None and want.hidden for want in step.want):
            raise PlatformError(f"step {step.seq} asks for encoders, hidden states, or drafts without a draft Program: the native executor has none of them")
        if self._drafts is not None:
            self._drafts.change(step)
        one = self._calls[0]
        one.begin(step)
        short = len(step.tokens) <= _SHORT_ROWS and len(self._calls) > 1 and not step.late
        one.started = short or (bool(self._flying) and not step.late)
        if one.started:
            call("llmx_engine_start", self._need_engine(), C.addressof(one.args), C.addressof(one.result))
        else:
            self._run(one)
        self._calls.reverse()
        self._flying.append(one)
        return Ticket(step.seq, tuple(step.slot.tolist()), one, more=short)

    def _run(self, one: StepCall) -> None:
        """The step, on this thread, behind those that were started."""
        step, engine = one.step, self._need_engine()
        if self._typed:
            types = step.token_types if step.token_types.size else np.zeros(step.num_tokens, np.int32)
            call("llmx_engine_token_types", engine, types.ctypes.data, len(types))
        call("llmx_engine_step", engine, C.addressof(one.args), C.addressof(one.result), not (step.late or self._pooled))
        if self._pooled:
            one.pooled = np.empty((len(step.head), self._pooled), np.float32)
            call("llmx_engine_logits", engine, C.addressof(one.args), 0, len(step.head), one.pooled.ctypes.data)

    def release(self, ticket: Ticket, late: Late) -> None:
        """Sample a late step under its masks; host_logits gets and gives the rows of all head rows."""
        one: StepCall = ticket.payload
        engine = self._need_engine()
        one.mask(late)
        logits = None
        if late.host_logits is not None:
            rows = np.empty((one.args.r, self._bundle.vocab_size), np.float32)
            call("llmx_engine_logits", engine, C.addressof(one.args), 0, one.args.r, rows.ctypes.data)
            logits = self._host_rows(one.step, rows, late)
        call("llmx_engine_finish", engine, C.addressof(one.args), C.addressof(one.result), None if logits is None else logits.ctypes.data)

    def _host_rows(self, step: Step, rows: np.ndarray, late: Late) -> np.ndarray:
        """Hand the sample rows to host_logits and put what comes back in their places; samples of one row (n > 1) get the same back."""
        assert late.host_logits is not None
        index = np.concatenate([np.arange(first, first + n) for _, first, n in step.samples.tolist()] or [np.empty(0, np.int64)])
        rows[index] = np.asarray(late.host_logits(rows[index]), dtype=np.float32)
        return np.ascontiguousarray(rows)

    def collect(self, ticket: Ticket) -> StepOutput:
        """The result of the oldest outstanding step; this thread helps to run it."""
        if not self._flying or self._flying[0].step.seq != ticket.seq:
            raise PlatformError(f"step {ticket.seq} is not the oldest in flight")
        one = self._flying.popleft()
        if one.started:
            began = perf_counter_ns()
            call("llmx_engine_wait", self._need_engine())
            out = one.output()
            out.waited_us = (perf_counter_ns() - began) // 1000
        else:
            out = one.output()
        if self._pooled:
            out.hidden["pooled"] = one.pooled
        if self._drafts is not None:
            self._drafts.finish(one.step, out)
        return out

    # -- between steps -------------------------------------------------------------------------------------------------

    def control(self, cmd: Control) -> Reply:
        """`stats`, `profile` (rows, contexts, repeats) with the kernels' times, `lora_add` and `lora_remove`; anything else is refused by name.

        op_us in stats: microseconds spent so far in each kind of op of the tape. turn_waits, where the engines of a server share threads: how
        often this one waited for its turn, and for how many microseconds.
        """
        if cmd.kind == "profile" and self._tape is not None:
            return self._profile(**cmd.args)
        if cmd.kind in ("lora_add", "lora_remove") and self._tape is not None:
            return self._lora(cmd.args["slot"], cmd.args.get("parts", {}))
        if cmd.kind != "stats" or self._engine is None:
            return Reply(False, error=f"the native executor does not know the control {cmd.kind!r}")
        lib, engine = library(), self._engine
        numbers = {"weight_bytes": lib.llmx_engine_weight_bytes(engine), "phases": lib.llmx_engine_phases(engine)}
        spent = (C.c_int64 * len(KINDS))()
        lib.llmx_engine_op_ns(engine, C.addressof(spent), len(KINDS))
        waits = (C.c_int64 * 2)()
        if lib.llmx_engine_turn_waits(engine, C.addressof(waits)) == 0:
            numbers["turn_waits"] = list(waits)
        times = {kind: spent[i] // 1000 for kind, i in KINDS.items() if spent[i]}
        return Reply(True, {"isa": self._isa, "threads": self._threads, **numbers, "op_us": times})

    def _lora(self, slot: int, parts: Mapping[str, LoraPart]) -> Reply:
        assert self._tape is not None
        try:
            set_adapter(self._need_engine(), slot, self._tape.targets, self._tape.tables, parts)
        except PlatformError as error:
            return Reply(False, error=str(error))
        return Reply(True)

    def _profile(self, rows: Sequence[int], contexts: Sequence[int], repeats: int) -> Reply:
        """Times of the kernels; pages are overwritten, so nothing may run, and prefixes must be forgotten before something does again."""
        if self._tape is None or any(self.history(slot) is not None for slot in range(self.limits.max_requests)):
            return Reply(False, error="kernels are measured while no request runs")
        from llmx_cpu.kernel_times import Loaded, kernel_times

        specs = [spec for spec, states in self._groups.items() for _ in states]
        value_bytes = sum(map(self._layer_bytes, specs)) / max(1, sum(BLOCK_TOKENS * s.kv_heads * (s.head_dim + s.v_head_dim) for s in specs))
        loaded = Loaded(
            *(self._need_engine(), self._isa, self._threads, self._activations, self._tape, self._matrices, specs, value_bytes),
            *(self.limits.max_tokens, min(self._bundle.max_model_len, self._kv_tokens), lambda step: self.collect(self.submit(step)), len(self._groups)),
        )
        return Reply(True, kernel_times(loaded, rows, contexts, repeats))

    def check_slots(self, expected: dict[int, list[int]]) -> None:
        """Raise AssertionError unless exactly these slots are in use with these tokens first (tests)."""
        actual = {slot: tokens for slot in range(self.limits.max_requests) if (tokens := self.history(slot)) is not None}
        shown = {slot: tokens[: len(expected.get(slot, tokens))] for slot, tokens in actual.items()}
        assert shown == expected, f"slots differ: executor {shown}, scheduler {expected}"

    def history(self, slot: int) -> list[int] | None:
        """Tokens of a slot; None for a free one."""
        engine, lib = self._need_engine(), library()
        n = lib.llmx_engine_slot(engine, slot, None, 0)
        if n < 0:
            return None
        out = np.empty(max(n, 1), np.int32)
        lib.llmx_engine_slot(engine, slot, out.ctypes.data, n)
        return [int(t) for t in out[:n]]

    def close(self) -> None:
        """Free everything native. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            library().llmx_engine_free(engine)  # waits for steps that were started, which write into self._calls
            self._flying.clear()

    def _need_engine(self) -> int:
        if self._engine is None:
            raise PlatformError("the native executor is not loaded, or was closed")
        return self._engine


def _pooled(bundle: ModelBundle) -> tuple[int, bool]:
    """(width of the rows that the main Program gives instead of logits, 0 for logits; whether it reads token types)."""
    main = bundle.model.programs.get("main")
    if main is None:
        return 0, False
    result = main.outputs().get("pooled")
    return (0 if result is None else row_width(result)), "token_types" in main.inputs


def _groups(bundle: ModelBundle) -> dict[KVSpec, list[State]]:
    """States of the main Program by equal KVSpec, in order of first use. Raises ProgramError for a kind that has no pages here."""
    groups: dict[KVSpec, list[State]] = {}
    for state in bundle.model.states.values():
        if state.spec.kind not in ("full", "sliding"):
            raise ProgramError(f"state {state.name!r} is of kind {state.spec.kind!r}; the native executor has full and sliding")
        groups.setdefault(state.spec, []).append(state)
    return groups

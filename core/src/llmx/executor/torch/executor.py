"""TorchExecutor: the Executor protocol over Programs interpreted op by op. Read top to bottom: load, pages, then one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from llmx.batch import Step, StepOutput
from llmx.config import EngineConfig
from llmx.errors import ConfigError, PlatformError, ProgramError
from llmx.executor.adapters import LoraPart
from llmx.executor.base import Control, Late, Limits, Progress, Reply, Ticket
from llmx.executor.bound import BoundOps, BoundProgram, kinds_using
from llmx.executor.bundle import ModelBundle
from llmx.executor.draft_shape import draft_shape
from llmx.executor.drawing import Drawing
from llmx.executor.op_weights import weight_refs
from llmx.executor.page_shapes import group_needs
from llmx.executor.slots import RequestRows, Slots
from llmx.executor.torch.adapted import AdaptedEmbedding, AdaptedLinear
from llmx.executor.torch.buckets import Buckets, make_buckets
from llmx.executor.torch.device import free_bytes, open_device
from llmx.executor.torch.draft import TorchDraft
from llmx.executor.torch.interpreter import as_index, positions_input
from llmx.executor.torch.kernel import ABI, Kernel, Spec
from llmx.executor.torch.kernel_times import Measured, kernel_times, profile_step
from llmx.executor.torch.pages import Pages
from llmx.executor.torch.rows import Rows
from llmx.executor.torch.sleeping import Sleeper
from llmx.executor.torch.weights import Weights, WeightStore
from llmx.hooks.collectives import Communicator
from llmx.hooks.devices import NO_PARTS, DeviceParts
from llmx.hooks.loader import load_target
from llmx.hooks.types import DeviceCaps
from llmx.kv.spec import GroupNeed, KVPlan
from llmx.platform.kernels import op_spec
from llmx.platform.plan import KernelChoice, Plan
from llmx.record import record

__all__ = ["HEAD_ROWS", "TorchExecutor"]

HEAD_ROWS = 64  # logits exist for this many rows at a time
STEP_TOKENS = 512  # token rows of a step unless the configuration says otherwise


@record
class _Packed:
    """A kernel with its weights, from load until its op is bound."""

    choice: KernelChoice
    kernel: Kernel
    spec: Spec
    weights: Any
    states: tuple[str, ...]


@dataclass(slots=True)
class _Flight:
    """The step in flight: its rows and values, and what is not computed yet."""

    step: Step
    requests: tuple[RequestRows, ...]
    rows: Rows
    values: dict[int, torch.Tensor]
    forward_ns: int
    out: StepOutput | None = None


class TorchExecutor:
    """Runs a Model's main Program, and its drafter's, on one torch device. Built without weights; `load` packs them, `kv_allocate` binds the ops."""

    def __init__(self, config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle, device: str, parts: DeviceParts = NO_PARTS) -> None:
        self._page_type = config.page_type
        if self._page_type == "i8":
            raise ConfigError("kv_cache_dtype is int8, but the torch executor has pages of float32, bfloat16, fp8: give one of them", field="kv_cache_dtype")
        self._bundle, self._device, self._parts = bundle, open_device(device), parts
        self._packed: list[_Packed] = []
        self._bound: BoundProgram | None = None
        self._main: list[BoundOps] = []
        self._arch = caps.arch
        self._drafts: TorchDraft | None = None
        self._shape = draft_shape(bundle.model, bundle.draft_mask)
        self._communicator: Communicator | None = None
        self._buckets: Buckets | None = None
        self._lora, self._adapted = config.lora.on, list[AdaptedLinear | AdaptedEmbedding]()
        self._adapters: set[int] = set()  # LoRA slots that hold one
        self._block_tokens: tuple[int, ...] = ()
        self._pages: Pages | None = None
        self._slots: Slots | None = None
        self._flight: _Flight | None = None
        self._sleeper = Sleeper(parts.allocator)
        self._stats: dict[str, Any] = {"device": device}
        self.limits = Limits(
            max_tokens=config.scheduler.max_num_batched_tokens or STEP_TOKENS,
            max_requests=config.scheduler.max_num_seqs,
            max_inflight=1,
            abis=frozenset({ABI}),
            features=frozenset({"late_mask", "host_logits", "device_drafts", "lora", "lora.embeddings", "collectives"}),
        )

    def connect(self, communicator: Communicator) -> None:
        """Be one of several ranks. Before `load`."""
        self._communicator = communicator

    # -- start ---------------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, progress: Progress) -> None:
        """Pack the weights for the kernels that the plan chose. Raises ModelError, ProgramError, PlatformError."""
        programs = self._bundle.model.programs
        known = {"main", *(self._shape.programs if self._shape else ())}
        if "main" not in programs or not programs.keys() <= known:
            raise ProgramError(f"model {self._bundle.name!r} has the programs {', '.join(programs)}; the torch executor runs 'main' and a drafter's")
        main, facts = programs["main"], dict(plan.facts)
        if not {"logits", "pooled"} & main.outputs().keys() or "head" not in main.inputs:
            have = f"inputs {', '.join(main.inputs)}, results {', '.join(main.outputs()) or 'none'}"
            raise ProgramError(f"model {self._bundle.name!r} must give 'logits' or 'pooled' for the rows in 'head'; it has {have}")
        store, uses = WeightStore(self._bundle.weights, self._device, self._bundle.max_model_len), kinds_using(
            [op for program in programs.values() for op in program.ops]
        )
        choices, scratch = [choice for choice in plan.kernels if choice.program in programs], 0
        for done, choice in enumerate(choices):
            ops = programs[choice.program].ops[choice.first : choice.first + len(choice.resolution.kinds)]
            specs = tuple(op_spec(op, kv_dtype=self._page_type, dtype=facts.get("dtype", "f32")) for op in ops)
            spec: Spec = specs if len(specs) > 1 else specs[0]
            target = load_target(choice.resolution.target)
            kernel: Kernel = target() if isinstance(target, type) else target
            refs = weight_refs(ops)
            used = tuple(dict.fromkeys(kind for ref in refs.values() for kind in uses[ref.name, ref.transforms]))
            states = tuple(dict.fromkeys(name for op in ops for name in op.states))
            self._packed.append(_Packed(choice, kernel, spec, kernel.pack(Weights(store, refs), spec, used), states))
            scratch += kernel.workspace(spec, self.limits)
            progress("weights", (done + 1) / len(choices))
        self._stats |= {"weight_bytes": store.nbytes, "workspace_bytes": scratch}
        self._bundle.weights.close()

    def kv_needs(self) -> list[GroupNeed]:
        """One need per distinct KVSpec, in order of first use."""
        return group_needs(self._bundle.model, self._page_type)

    def kv_allocate(self, plan: KVPlan) -> None:
        """Zeroed pages; then every op is bound to its States."""
        self._pages, self._slots = Pages(plan, self._device), Slots(plan)
        model, states = self._bundle.model, self._pages.states
        bound: dict[str, list[BoundOps]] = {name: [] for name in model.programs}
        for one in self._packed:
            call = one.kernel.bind(one.spec, one.weights, tuple(states[name] for name in one.states))
            found, program = one.choice.resolution, model.programs[one.choice.program]
            if self._lora and found.kinds in (("linear",), ("embed",)) and program.name == "main":
                adapted = AdaptedLinear if found.kinds == ("linear",) else AdaptedEmbedding
                call = adapted(call, program.ops[one.choice.first], self._device)
                self._adapted.append(call)
            ops = BoundOps.of(program, one.choice.first, len(found.kinds), call, found.provider, "graph_safe" in found.tags)
            bound[one.choice.program].append(ops)
        self._main, self._bound = bound["main"], BoundProgram(model.programs["main"], bound["main"])
        if self._shape is not None:
            ids: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self._shape.programs}
            for one in self._packed:
                if "ids.0" in one.weights and one.choice.program in ids:
                    ids[one.choice.program][model.programs[one.choice.program].ops[one.choice.first].attrs.name] = one.weights["ids.0"].long()
            drafters = [(model.programs[name], BoundProgram(model.programs[name], bound[name]), ids[name]) for name in self._shape.programs]
            self._drafts = TorchDraft(drafters, self._shape, plan, self._slots, self._device, self.limits.max_tokens)
            self._drafts.communicator = self._communicator
        self._block_tokens = tuple(group.need.block_tokens for group in plan.groups)
        self._sleeper.hold((one.weights for one in self._packed), (tensor for state in states.values() for tensor in state.tensors))

    @torch.inference_mode()
    def warm_up(self, progress: Progress) -> None:
        """Compile and record small steps, where the platform has a compiler or graphs; nothing is compiled or recorded after."""
        slots, _ = self._ready()
        if self._bound is not None and (self._parts.graphs or self._parts.compiler) is not None:
            blocks = [table.shape[1] for table in slots.tables]
            self._buckets, why = make_buckets(
                self._bundle.model.programs["main"], self._bound, self._parts, self.limits, blocks, self._block_tokens, self._device, progress
            )
            self._stats |= {"graphs_off": why} if why else {}
        progress("warm up", 1.0)

    # -- one step ------------------------------------------------------------------------------------------------------

    def submit(self, step: Step) -> Ticket:
        """Run the step; of a late one everything before its head rows."""
        slots, pages = self._ready()
        if self._flight is not None:
            raise PlatformError(f"step {step.seq} was submitted before step {self._flight.step.seq} was collected: the torch executor takes one at a time")
        if step.encode or (step.draft_k and self._drafts is None):
            raise PlatformError(f"step {step.seq} asks for encoders, or drafts without a draft Program: the torch executor has none of them")
        if step.num_tokens > self.limits.max_tokens:
            raise PlatformError(f"step {step.seq} brings {step.num_tokens} tokens, the limit is {self.limits.max_tokens}")
        slots.change(step)
        if self._drafts is not None:
            self._drafts.change(step)
        pages.run(step.kv_ops, slots.tables)
        began = perf_counter_ns()
        requests = slots.requests(step)
        if missing := {one.lora for one in requests if one.lora >= 0} - self._adapters:
            raise PlatformError(f"step {step.seq} has requests that use the LoRA slots {sorted(missing)}, which hold no adapter")
        sizes = {"T": step.num_tokens, "N": step.num_requests, "R": len(step.head)}
        rows = Rows(requests, self._device, sizes, self._block_tokens, communicator=self._communicator)
        self._flight = flight = _Flight(step, requests, rows, self._forward(step, rows, slots), 0)
        if self._drafts is not None and flight.values:
            assert self._bound is not None
            self._drafts.keep(requests, self._bound.results(flight.values))
        flight.forward_ns = perf_counter_ns() - began
        if not step.late:
            self._finish(flight, Late())
        return Ticket(step.seq, tuple(step.slot.tolist()), flight)

    @torch.inference_mode()
    def _forward(self, step: Step, rows: Rows, slots: Slots) -> dict[int, torch.Tensor]:
        """All ops that do not depend on head rows."""
        if not step.num_tokens:
            return {}
        assert self._bound is not None
        inputs = self._inputs(step, rows, slots)
        size = None if self._buckets is None or rows.uses_adapters else self._buckets.size_for(step.num_tokens, step.num_requests)
        return self._bound.body(rows, inputs) if self._buckets is None or size is None else self._buckets.run(size, rows, inputs)

    def _inputs(self, step: Step, rows: Rows, slots: Slots) -> dict[str, torch.Tensor]:
        positions = positions_input(self._bundle.model.programs["main"], rows.positions())
        types = step.token_types if step.token_types.size else np.zeros(step.num_tokens, np.int32)
        ids = as_index(slots.tokens(step, self._bundle.vocab_size), self._device)
        return {"ids": ids, "positions": positions, "token_types": as_index(types, self._device)}

    def release(self, ticket: Ticket, late: Late) -> None:
        """Sample a late step under its masks; host_logits gets and gives the rows of all samples, in their order."""
        flight: _Flight = ticket.payload
        if not flight.step.late or flight.out is not None:
            raise PlatformError(f"step {ticket.seq} is not late, or was released before")
        self._finish(flight, late)

    @torch.inference_mode()
    def _finish(self, flight: _Flight, late: Late) -> None:
        """Head, sampling and logprobs, in blocks of head rows."""
        slots, _ = self._ready()
        assert self._bound is not None
        began, step = perf_counter_ns(), flight.step
        drawing = Drawing(step, flight.requests, slots, late)
        blocks = [(first, step.head[first : first + HEAD_ROWS]) for first in range(0, len(step.head), HEAD_ROWS)]
        processed = self._host_logits(flight, blocks, drawing.host_rows(), late)
        wanted = {name for want in step.want if want is not None for name in want.hidden}
        pooling = "pooled" in self._bundle.model.programs["main"].outputs()
        wanted |= {"pooled"} if pooling and len(step.head) else set()
        hidden: dict[str, list[np.ndarray]] = {name: [] for name in sorted(wanted)}
        for first, head in blocks:
            results = self._head(flight, head)
            if not pooling:
                drawing.block(first, _host(results["logits"]), processed)
            for name in hidden.keys() & results.keys():
                hidden[name].append(_host(results[name]))
        for name, tensor in self._bound.results(flight.values).items():
            if name in hidden:
                hidden[name] = [_host(tensor)]
        flight.out, flight.values = drawing.out, {}
        flight.out.hidden = {name: _whole(name, parts) for name, parts in hidden.items()}
        flight.out.kv_done = np.empty(0, np.int32)
        flight.out.t_us = (flight.forward_ns // 1000, (perf_counter_ns() - began) // 1000, 0)

    def _host_logits(self, flight: _Flight, blocks: list[tuple[int, np.ndarray]], rows: np.ndarray, late: Late) -> np.ndarray | None:
        """What the host's processors make of the sample rows [rows, V]; the one place where all of them exist at once."""
        if late.host_logits is None or not len(rows):
            return None
        assert self._bound is not None
        logits = [_host(self._head(flight, head)["logits"]) for _, head in blocks]
        return np.asarray(late.host_logits(np.concatenate(logits)[rows]), dtype=np.float32)

    def _head(self, flight: _Flight, head: np.ndarray) -> dict[str, torch.Tensor]:
        """The results of these head rows."""
        assert self._bound is not None
        flight.rows.head = index = as_index(head, self._device)
        return self._bound.head(flight.rows, flight.values, index)

    def collect(self, ticket: Ticket) -> StepOutput:
        """The result of the outstanding step."""
        flight = self._flight
        if flight is None or flight is not ticket.payload:
            raise PlatformError(f"step {ticket.seq} is not the one in flight")
        if flight.out is None:
            raise PlatformError(f"step {ticket.seq} is late and was not released")
        self._flight = None
        if self._drafts is not None:
            self._drafts.finish(flight.step, flight.out)
        return flight.out

    # -- between steps -------------------------------------------------------------------------------------------------

    def control(self, cmd: Control) -> Reply:
        """`stats` and `profile` (rows, contexts, repeats: the kernels' times) answer, `sleep` and `wake` where the platform has an allocator,
        `lora_add` and `lora_remove` where adapters are on."""
        if cmd.kind == "sleep":
            reply = self._sleeper.sleep(cmd.args.get("level", 1))
            if reply.ok and self._buckets is not None:
                self._buckets.close()
                self._buckets = None
            return reply
        if cmd.kind == "wake":
            reply = self._sleeper.wake()
            if reply.ok:
                self.warm_up(lambda what, fraction: None)  # graphs know the addresses that the memory had
            return reply
        if cmd.kind == "profile":
            return self._profile(**cmd.args)
        if cmd.kind in ("lora_add", "lora_remove") and self._lora:
            return self._change_adapter(cmd.args["slot"], cmd.args.get("parts"))
        if cmd.kind != "stats":
            return Reply(False, error=f"the torch executor does not know the control {cmd.kind!r}")
        graphs = self._buckets.stats if self._buckets else {}
        return Reply(True, {**self._stats, **graphs, "free_bytes": free_bytes(self._device), "slots": len(self._slots.used) if self._slots else 0})

    @torch.inference_mode()
    def _profile(self, rows: list[int], contexts: list[int], repeats: int) -> Reply:
        """Times of the kernels of "main", each called by itself, without graphs; pages are overwritten, so nothing may run."""
        slots, pages = self._ready()
        if slots.used or self._bound is None or self._communicator is not None:
            return Reply(False, error="kernels are measured while no request runs, on one rank")
        main = self._bundle.model.programs["main"]
        calls = []
        for one, ops in zip((one for one in self._packed if one.choice.program == "main"), self._main, strict=True):
            specs, found = one.spec if isinstance(one.spec, tuple) else (one.spec,), one.choice.resolution
            refs = weight_refs(main.ops[one.choice.first : one.choice.first + len(specs)])
            weights = tuple((prod(ref.shape), str(ref.quant)) for key, ref in refs.items() if not key.endswith(".bias"))
            calls.append(Measured(ops, specs, found.provider, weights, tuple(pages.states[name] for name in one.states)))
        groups = [(size, min(t.shape[0] for s in pages.states.values() if s.group == at for t in s.tensors)) for at, size in enumerate(self._block_tokens)]
        room = min([self._bundle.max_model_len, *(size * (blocks - 1) for size, blocks in groups if size > 1)])

        def run(ops: Sequence[BoundOps], count: int, context: int, adapter: int) -> None:
            step = profile_step(groups, count, context, adapter)
            slots.change(step)
            try:
                bound, given = BoundProgram(main, ops), Rows(slots.requests(step), self._device, {"T": count, "N": 1, "R": 0}, self._block_tokens)
                head = as_index(np.arange(min(count, HEAD_ROWS)), self._device)
                given.head = head
                bound.head(given, bound.body(given, self._inputs(step, given, slots)), head)
            finally:
                slots.change(Step(0, left=step.slot))

        fitting = [m for m in rows if m <= min(room, self.limits.max_tokens)]
        steps = [*((m, 0, slot) for slot in (-1, *sorted(self._adapters)[:1]) for m in fitting), *((1, c, -1) for c in contexts if c + 1 < room)]
        return Reply(True, {**kernel_times(calls, run, self._device, steps, repeats), "emulated": "emulated" in self._arch})

    def _change_adapter(self, slot: int, parts: Mapping[str, LoraPart] | None) -> Reply:
        for one in self._adapted:
            one.drop(slot)
        self._adapters.discard(slot)
        if parts is None:
            return Reply(True)
        try:
            for one in self._adapted:
                one.put(slot, parts)
        except (MemoryError, RuntimeError) as error:  # torch's out of memory is a RuntimeError
            for one in self._adapted:
                one.drop(slot)
            return Reply(False, error=str(error))
        self._adapters.add(slot)
        return Reply(True)

    def check_slots(self, expected: dict[int, list[int]]) -> None:
        """Raise AssertionError unless exactly these slots are in use with these tokens first (tests)."""
        slots, _ = self._ready()
        actual = {slot: kept.history[: len(expected.get(slot, kept.history))] for slot, kept in slots.used.items()}
        assert actual == expected, f"slots differ: executor {actual}, scheduler {expected}"

    def close(self) -> None:
        """Forget weights, pages and slots. Idempotent."""
        if self._buckets is not None:
            self._buckets.close()
        self._buckets, self._drafts = None, None
        self._packed, self._adapted, self._main = [], [], []
        self._bound, self._pages, self._slots, self._flight = None, None, None, None

    def _ready(self) -> tuple[Slots, Pages]:
        if self._slots is None or self._pages is None:
            raise PlatformError("the torch executor has no pages: load and kv_allocate come first, and it must not be closed")
        if self._sleeper.asleep:
            raise PlatformError("the torch executor sleeps: wake comes first")
        return self._slots, self._pages


def _host(tensor: torch.Tensor) -> np.ndarray:
    """float32 in host memory."""
    array: np.ndarray = tensor.float().cpu().numpy()
    return array


def _whole(name: str, parts: list[np.ndarray]) -> np.ndarray:
    if not parts:
        raise PlatformError(f"a sample wants the hidden result {name!r}, which the Program does not have")
    return np.concatenate(parts)

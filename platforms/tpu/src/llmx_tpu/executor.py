"""JaxExecutor: the Executor protocol over Programs traced under jax.jit, padded to buckets. Read top to bottom: load, pages, warm-up, one step."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import jax
import numpy as np

from llmx.config import EngineConfig
from llmx.errors import PlatformError, ProgramError
from llmx.executor import Control, GroupNeed, KVPlan, Late, Limits, ModelBundle, Progress, Reply, Step, StepOutput, Ticket
from llmx.executor.bound import kinds_using
from llmx.executor.drawing import Drawing
from llmx.executor.page_shapes import group_needs, page_moves
from llmx.executor.slots import RequestRows, Slots
from llmx.hooks import DeviceCaps
from llmx.hooks.loader import load_target
from llmx.platform.kernels import op_spec
from llmx.platform.plan import Plan
from llmx_tpu.backend import NOT_VERIFIED, on_hardware, open_mesh, use_cache
from llmx_tpu.device_step import DeviceStep, Head
from llmx_tpu.kernel import ABI, Kernel, Spec
from llmx_tpu.pages import check_blocks, padded_moves
from llmx_tpu.traced import Piece, TracedProgram
from llmx_tpu.weights import WeightStore, op_weights

__all__ = ["JaxExecutor"]

STEP_TOKENS = 256  # token rows of a step unless the configuration says otherwise


@dataclass(slots=True)
class _Flight:
    """The step in flight: its rows and values, and what is not computed yet."""

    step: Step
    requests: tuple[RequestRows, ...]
    values: dict[str, Any]
    forward_ns: int
    compiles: int  # of the executor when the step began, after it was ready
    out: StepOutput | None = None


class JaxExecutor:
    """Runs a Model's main Program on the devices of one mesh. Built without weights; `load` packs them, `warm_up` compiles every bucket."""

    def __init__(self, config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle) -> None:
        self._bundle, self._page_type = bundle, config.page_type
        self._mesh, self._cache = open_mesh(config), use_cache(config)
        self._hardware = on_hardware(config)
        self._dtype = "bfloat16" if self._hardware and config.model.dtype == "auto" else "float32"
        self._pieces: list[Piece] = []
        self._packed: list[Any] = []
        self._slots: Slots | None = None
        self._device: DeviceStep | None = None
        self._flight: _Flight | None = None
        self._stats: dict[str, Any] = {"device": caps.arch}
        max_tokens = config.scheduler.max_num_batched_tokens or STEP_TOKENS
        self.limits = Limits(
            max_tokens=max_tokens,
            max_requests=config.scheduler.max_num_seqs,
            max_inflight=1,
            buckets=DeviceStep.row_buckets(max_tokens),
            abis=frozenset({ABI}),
            features=frozenset({"late_mask", "host_logits"}),
        )

    # -- start ---------------------------------------------------------------------------------------------------------

    def load(self, plan: Plan, progress: Progress) -> None:
        """Pack the weights for the kernels that the plan chose. Raises ModelError, ProgramError, PlatformError."""
        programs = self._bundle.model.programs
        if "main" not in programs or len(programs) > 1:
            raise ProgramError(f"model {self._bundle.name!r} has the programs {', '.join(programs)}; the JAX executor runs 'main', and only it")
        main, facts = programs["main"], dict(plan.facts)
        if not {"logits", "pooled"} & main.outputs().keys() or "head" not in main.inputs:
            have = f"inputs {', '.join(main.inputs)}, results {', '.join(main.outputs()) or 'none'}"
            raise ProgramError(f"model {self._bundle.name!r} must give 'logits' or 'pooled' for the rows in 'head'; it has {have}")
        store, uses = WeightStore(self._bundle.weights, self._mesh, self._dtype, self._bundle.max_model_len), kinds_using(main.ops)
        choices = [choice for choice in plan.kernels if choice.program == "main"]
        for done, choice in enumerate(choices):
            ops = main.ops[choice.first : choice.first + len(choice.resolution.kinds)]
            specs = tuple(op_spec(op, kv_dtype=self._page_type, dtype=facts.get("dtype", "f32")) for op in ops)
            spec: Spec = specs if len(specs) > 1 else specs[0]
            target = load_target(choice.resolution.target)
            kernel: Kernel = target() if isinstance(target, type) else target
            weights = op_weights(store, ops)
            used = tuple(dict.fromkeys(kind for ref in weights.refs.values() for kind in uses[ref.name, ref.transforms]))
            self._packed.append(kernel.pack(weights, spec, used))
            states = tuple(dict.fromkeys(name for op in ops for name in op.states))
            leaves, tree = jax.tree.flatten(self._packed[-1])
            alike = (choice.resolution.target, spec, tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
            self._pieces.append(Piece(choice.first, len(ops), kernel.bind(spec, states), choice.resolution.provider, alike))
            progress("weights", (done + 1) / len(choices))
        self._stats |= {"weight_bytes": store.nbytes, "devices": self._mesh.size}
        self._bundle.weights.close()

    def kv_needs(self) -> list[GroupNeed]:
        """One need per distinct KVSpec, in order of first use."""
        return group_needs(self._bundle.model, self._page_type)

    def kv_allocate(self, plan: KVPlan) -> None:
        """Zeroed pages, and the Program as functions over them."""
        traced = TracedProgram(self._bundle.model, self._pieces, plan, interpret=not self._hardware)
        self._slots = Slots(plan)
        arranged, self._packed = traced.arrange(self._packed), []
        self._device = DeviceStep(traced, arranged, plan, self._mesh, self.limits, self._bundle.vocab_size)

    def warm_up(self, progress: Progress) -> None:
        """Compile every bucket, and run it once."""
        _, device = self._ready()
        device.warm_up(progress, pooling=self._pooling)
        device.compiled.ready = True

    @property
    def _pooling(self) -> bool:
        return "pooled" in self._bundle.model.programs["main"].outputs()

    # -- one step ------------------------------------------------------------------------------------------------------

    def submit(self, step: Step) -> Ticket:
        """Run the step; of a late one everything before its head rows."""
        slots, device = self._ready()
        if self._flight is not None:
            raise PlatformError(f"step {step.seq} was submitted before step {self._flight.step.seq} was collected: the JAX executor takes one at a time")
        if step.encode or step.draft_k:
            raise PlatformError(f"step {step.seq} asks for encoders or device drafts: the JAX executor has none of them")
        if step.num_tokens > self.limits.max_tokens:
            raise PlatformError(f"step {step.seq} brings {step.num_tokens} tokens, the limit is {self.limits.max_tokens}")
        slots.change(step)
        began, before = perf_counter_ns(), device.compiled.while_serving
        for moves in padded_moves(list(page_moves(step.kv_ops, slots.tables, device.blocks)), device.plan):
            device.move(moves)
        requests = slots.requests(step)
        values: dict[str, Any] = {}
        if step.num_tokens:
            check_blocks(device.plan, requests)
            values = device.body(requests, slots, step, slots.tokens(step, self._bundle.vocab_size))
        self._flight = flight = _Flight(step, requests, values, 0, before)
        if step.late:
            device.wait(values)
        flight.forward_ns = perf_counter_ns() - began
        if not step.late:
            self._finish(flight, Late())
        return Ticket(step.seq, tuple(step.slot.tolist()), flight)

    def release(self, ticket: Ticket, late: Late) -> None:
        """Sample a late step under its masks; host_logits gets and gives the rows of all samples, in their order."""
        flight: _Flight = ticket.payload
        if not flight.step.late or flight.out is not None:
            raise PlatformError(f"step {ticket.seq} is not late, or was released before")
        self._finish(flight, late)

    def _finish(self, flight: _Flight, late: Late) -> None:
        """Head, sampling and logprobs, in blocks of head rows."""
        slots, device = self._ready()
        began, step = perf_counter_ns(), flight.step
        drawing = Drawing(step, flight.requests, slots, late)
        wanted = {name for want in step.want if want is not None for name in want.hidden}
        wanted |= {"pooled"} if self._pooling and len(step.head) else set()
        head = Head(device, flight.values, step.head, wanted) if len(step.head) else None
        if head is not None:
            if late.host_logits is not None and len(step.samples):
                head.run_on_host(drawing, late.host_logits)
            else:
                head.run(None if self._pooling else drawing)
        flight.out = drawing.out
        flight.out.hidden = self._hidden(flight, head, wanted)
        flight.values = {}
        flight.out.kv_done = np.empty(0, np.int32)
        flight.out.compiles = device.compiled.while_serving - flight.compiles
        flight.out.t_us = (flight.forward_ns // 1000, (perf_counter_ns() - began) // 1000, 0)

    def _hidden(self, flight: _Flight, head: Head | None, wanted: set[str]) -> dict[str, np.ndarray]:
        found = dict(head.hidden) if head is not None else {}
        for name in wanted & set(flight.values.get("results", {})):
            value = np.asarray(flight.values["results"][name])
            rows = self._bundle.model.programs["main"].outputs()[name].shape[0]
            found[name] = value[: flight.step.num_requests if str(rows) == "N" else flight.step.num_tokens]
        missing = sorted(wanted - found.keys())
        if missing:
            raise PlatformError(f"a sample wants the hidden result {missing[0]!r}, which the Program does not have")
        return found

    def collect(self, ticket: Ticket) -> StepOutput:
        """The result of the outstanding step."""
        flight = self._flight
        if flight is None or flight is not ticket.payload:
            raise PlatformError(f"step {ticket.seq} is not the one in flight")
        if flight.out is None:
            raise PlatformError(f"step {ticket.seq} is late and was not released")
        self._flight = None
        return flight.out

    # -- between steps -------------------------------------------------------------------------------------------------

    def control(self, cmd: Control) -> Reply:
        """`stats` answers; anything else is refused by name."""
        if cmd.kind != "stats":
            return Reply(False, error=f"the JAX executor does not know the control {cmd.kind!r}")
        stats = {**self._stats, "slots": len(self._slots.used) if self._slots else 0, "cache": self._cache}
        if self._device is not None:
            compiled = self._device.compiled
            stats |= {"compiles": compiled.compiles, "jit_compiles": compiled.while_serving, "programs": len(compiled.table)}
        return Reply(True, stats if self._hardware else {**stats, "note": NOT_VERIFIED})

    def check_slots(self, expected: dict[int, list[int]]) -> None:
        """Raise AssertionError unless exactly these slots are in use with these tokens first (tests)."""
        slots, _ = self._ready()
        actual = {slot: kept.history[: len(expected.get(slot, kept.history))] for slot, kept in slots.used.items()}
        assert actual == expected, f"slots differ: executor {actual}, scheduler {expected}"

    def close(self) -> None:
        """Forget weights, pages and slots. Idempotent."""
        self._pieces, self._packed, self._device, self._slots, self._flight = [], [], None, None, None

    def _ready(self) -> tuple[Slots, DeviceStep]:
        if self._slots is None or self._device is None:
            raise PlatformError("the JAX executor has no pages: load and kv_allocate come first, and it must not be closed")
        return self._slots, self._device

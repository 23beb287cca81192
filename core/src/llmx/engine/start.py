"""From a configuration to a running Engine: the other path through the code, read top to bottom in `start_engine`.

Order: probes -> platform -> capabilities -> platform's defaults and checks -> model and Programs -> kernels -> Plan ->
weights -> KV cache -> warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from difflib import get_close_matches
from functools import partial
from itertools import chain
from math import prod
from time import monotonic
from typing import Any

import pluggy

from llmx.config import Change, EngineConfig
from llmx.draft.plugin import CoreDrafters
from llmx.draft.programs import check_device, with_programs
from llmx.draft.start import ChosenDrafter, choose_drafter
from llmx.engine.chosen_platform import ChosenPlatform, value_dtypes
from llmx.engine.engine import Engine
from llmx.engine.installed import installed, version_skew
from llmx.engine.kv_size import size_kv
from llmx.engine.memory import available_bytes, file_bytes, spare_bytes
from llmx.engine.messages import EngineInfo, Headers
from llmx.engine.pooling import with_whole_prompts
from llmx.engine.processors import processors_from
from llmx.engine.ranks import check_ranks, share_of, with_ranks
from llmx.engine.step_watch import watch_steps
from llmx.engine.warm_up import measure
from llmx.errors import ConfigError, PlatformError
from llmx.executor.base import Control, Executor, Progress
from llmx.executor.bundle import ModelBundle
from llmx.hooks.loader import PluginLoader
from llmx.hooks.types import DeviceCaps, LogitsModel
from llmx.kv.groups import blocks_for
from llmx.kv.spec import KVPlan
from llmx.lora.adapters import adapters_of
from llmx.lora.plugin import CoreResolvers
from llmx.lora.slots import slot_bytes
from llmx.models.load import LoadedModel, ModelSummary, load_model
from llmx.models.plugin import CoreModels, registry_from
from llmx.platform.plan import KernelChoice, Plan
from llmx.platform.select import Selection, select_platform
from llmx.program.ops import Model
from llmx.record import record
from llmx.resolve import probe_environment
from llmx.structured.start import grammars_from

__all__ = ["Prepared", "prepare", "start_engine", "value_dtypes"]

# secrets, paths and the place among ranks and engines, which must not stand in a plan
_HIDDEN = ("api_keys", "hf_token", "download_dir", "cache_dir", "rank", "shared_threads")

OnHeaders = Callable[[Headers], None]


@record
class Prepared:
    """Everything that is decided before weights are read: what `llmx explain` shows."""

    config: EngineConfig
    changes: list[Change]
    selection: Selection
    manager: pluggy.PluginManager
    caps: DeviceCaps
    loaded: LoadedModel
    executor: Executor
    plan: Plan
    warnings: list[str]
    drafter: ChosenDrafter | None
    platform: ChosenPlatform
    whole: Model  # before ranks share it


def prepare(config: EngineConfig, user_set: Iterable[str] = (), on_headers: OnHeaders | None = None, rank: int = 0) -> Prepared:
    """Choose platform and kernels for the configured model. on_headers: told of its headers as soon as they are read. rank: whose share of it.

    Raises ConfigError, ModelError, PlatformError, PluginError.
    """
    loader = PluginLoader.discover(config.platform)
    selection = select_platform(loader.probe_all(probe_environment()), config.platform.name)
    manager = loader.activate(selection.name, builtin=[CoreModels(), CoreDrafters(), CoreResolvers()])
    _check_variables(manager, selection.name, config)
    platform = ChosenPlatform(selection.name, manager)
    caps = platform.caps(config)
    config, changes, warnings = platform.configure(config, caps, user_set)
    drafter = choose_drafter(manager, config)
    loaded = load_model(config.model, registry_from(manager))
    if on_headers is not None:
        on_headers(_headers_of(loaded.summary))
    if drafter is not None:
        loaded = with_programs(drafter, loaded, config, registry_from(manager))
    config = with_whole_prompts(config, loaded.pooling, loaded.summary.max_model_len, set(user_set))
    whole = loaded.bundle.model
    loaded = share_of(loaded, config.platform.tensor_parallel_size, rank)
    executor, kernels = platform.executor(config, caps, loaded.bundle)
    check_device(drafter, executor.limits, selection.name)
    check_ranks(config, executor, selection.name)
    choices = platform.choices(config, caps, loaded.bundle.model, executor, kernels)
    plan = _plan(config, caps, selection, loaded, choices)
    told = [*loader.warnings, *warnings, *loaded.warnings]
    return Prepared(config, changes, selection, manager, caps, loaded, executor, plan, told, drafter, platform, whole)


def start_engine(
    config: EngineConfig, progress: Progress, user_set: Iterable[str] = (), on_headers: OnHeaders | None = None
) -> tuple[Engine, EngineInfo]:
    """A ready engine. progress is called with what is being done and how far it is; on_headers as in `prepare`."""
    began = monotonic()
    ready = prepare(config, user_set, on_headers)
    _check_weights(ready)
    executor = with_ranks(ready, config, user_set)
    try:
        return _started(ready, executor, progress, began)
    except BaseException:
        executor.close()  # whose other ranks are processes
        raise


def _started(ready: Prepared, executor: Executor, progress: Progress, began: float) -> tuple[Engine, EngineInfo]:
    bundle = ready.loaded.bundle
    executor.load(ready.plan, progress)
    kv_plan = _size_kv(ready.config, executor, bundle, on_host=ready.caps.has("host.unified"))
    executor.kv_allocate(kv_plan)
    executor.warm_up(progress)
    eos_ids, vocab_size = ready.loaded.summary.eos_ids, bundle.vocab_size
    grammars = grammars_from(ready.manager, ready.config, ready.loaded.summary.tokenizer, vocab_size, eos_ids)
    engine = Engine(ready.config, executor, kv_plan, grammars, pooling=ready.loaded.pooling,
        eos_ids=eos_ids, vocab_size=vocab_size, numerics=ready.plan.numerics, drafter=ready.drafter,
    )  # fmt: skip
    engine.processors = processors_from(ready.manager, ready.config, LogitsModel(vocab_size, eos_ids, grammars.token_bytes))
    if (adapters := adapters_of(ready.config, ready.whole, executor, ready.manager)) is not None:
        engine.adapters, engine.scheduler.admission.adapters = adapters, adapters.slots
        adapters.memory.unfinished = partial(chain, engine.scheduler.running, engine.scheduler.waiting)
    step_s = measure(engine)
    watch_steps(engine, ready.manager, ready.config)
    return engine, _info(ready, kv_plan, monotonic() - began, step_s, engine.adapters.facts())


def _headers_of(summary: ModelSummary) -> Headers:
    source = summary.tokenizer
    return Headers(source.path, source.gguf is not None, list(source.eos_ids), source.cache_dir, dict(summary.generation))


def _check_variables(manager: pluggy.PluginManager, platform: str, config: EngineConfig) -> None:
    """A variable LLMX_<PLATFORM>_* that the chosen platform does not know is a typing error, not something to ignore."""
    known = [variable.name for variables in manager.hook.llmx_env_vars() for variable in variables]
    for name, _ in config.platform.options:
        if name.startswith(f"LLMX_{platform.upper()}_") and name not in known:
            near = get_close_matches(name, known, n=1) or known
            raise ConfigError(f"environment variable {name} is not known to platform {platform!r}: did you mean {', '.join(near) or 'none'}?", field=name)


def _plan(config: EngineConfig, caps: DeviceCaps, selection: Selection, loaded: LoadedModel, choices: list[KernelChoice]) -> Plan:
    shown = {part: values for part, values in asdict(config).items() if part not in ("server", "plugins", "lora")}
    visible = {part: {k: v for k, v in values.items() if k not in _HIDDEN} for part, values in shown.items()}
    visible["model"]["source"] = loaded.summary.name
    dtype, kv_dtype = value_dtypes(config)
    ranks = config.platform.tensor_parallel_size  # sums of shares have other bits
    shares = (("tensor_parallel", str(ranks)),) if ranks > 1 else ()
    facts = (("device", caps.arch), ("dtype", dtype), ("kv_dtype", kv_dtype), *shares)
    return Plan(selection.name, selection.why, _distributions(), visible, loaded.bundle.digest, facts, tuple(choices))


def _distributions() -> tuple[tuple[str, str], ...]:
    """Installed llmx distributions. Different versions are refused: they are released together."""
    found = installed()
    skew = version_skew(found)
    if skew is not None:
        raise PlatformError(f"{skew[0]}: install the same version of each, e.g. {skew[1]}")
    return tuple(found.items())


def _check_weights(ready: Prepared) -> None:
    """Refuse a model whose weights alone are more than the memory: the kernel would kill the process while it packs them."""
    if not ready.caps.has("host.unified"):
        return
    elements = sum(prod(ref.shape) for ref in {ref.name: ref for ref in ready.loaded.bundle.model.weights().values()}.values())
    elements *= ready.config.platform.tensor_parallel_size  # all ranks take from one memory
    needed = 4 * elements if value_dtypes(ready.config)[0] == "f32" else file_bytes(ready.loaded.summary.path)
    free = available_bytes()
    if needed > free:
        raise ConfigError(
            f"the weights take {needed >> 20} MiB, but {free >> 20} MiB of memory are free (limits of control groups counted): "
            "take a smaller model or quantisation, or give the process more memory",
            field="model",
        )


def _size_kv(config: EngineConfig, executor: Executor, bundle: ModelBundle, *, on_host: bool) -> KVPlan:
    slots = slot_bytes(config.lora, bundle.model)
    free = max((spare_bytes() if on_host else _device_bytes(executor)) - slots, 0)
    plan = size_kv(config.cache, executor, bundle.max_model_len, free)
    if on_host and plan.total_bytes > free:
        beside, more = (f" beside {slots / 2**20:.0f} MiB of adapters", ", --max-loras or --max-lora-rank") if slots else ("", "")
        raise ConfigError(
            f"the KV cache would take {plan.total_bytes / 2**20:.0f} MiB, but {free / 2**20:.0f} MiB of memory are free{beside}: "
            f"lower --kv-cache-memory-bytes or --num-blocks{more}",
            field="kv_bytes",
        )
    return plan


def _device_bytes(executor: Executor) -> int:
    """Free memory of a device that has its own, now that the weights are there; the host's where the executor cannot tell."""
    reply = executor.control(Control("stats"))
    free = reply.value.get("free_bytes") if reply.ok and isinstance(reply.value, dict) else None
    return spare_bytes() if free is None else int(free)


def _info(ready: Prepared, kv_plan: KVPlan, load_s: float, step_s: float, adapters: list[dict[str, Any]]) -> EngineInfo:
    summary, limits = ready.loaded.summary, ready.executor.limits
    full = min((group.num_blocks - 1) // max(blocks_for(group.need, summary.max_model_len, limits.max_tokens), 1) for group in kv_plan.groups)
    tokens = min((group.num_blocks - 1) * group.need.block_tokens for group in kv_plan.groups)
    dtype, kv_dtype = value_dtypes(ready.config)
    quants = sorted({str(ref.quant) for ref in ready.loaded.bundle.model.weights().values() if len(ref.shape) > 1})
    return EngineInfo(
        name=summary.name,
        served_names=list(summary.served_names),
        architecture=summary.architecture,
        max_model_len=summary.max_model_len,
        vocab_size=summary.vocab_size,
        platform=ready.selection.name,
        platform_why=ready.selection.why,
        other_platforms=list(ready.selection.others),
        device=ready.caps.arch,
        threads=int(ready.caps.props.get("threads", ready.caps.compute_units)),
        dtype="float32" if dtype == "f32" else "+".join(quants),
        kv_dtype=kv_dtype,
        kv_bytes=kv_plan.total_bytes,
        num_kv_blocks=sum(group.num_blocks - 1 for group in kv_plan.groups),
        kv_tokens=tokens,
        max_full_requests=full,
        max_num_seqs=limits.max_requests,
        max_num_batched_tokens=limits.max_tokens,
        load_s=load_s,
        plan_hash=ready.plan.hash,
        numerics=ready.plan.numerics,
        warnings=ready.warnings,
        changes=[f"{change.path} = {change.value}: {change.why}" for change in ready.changes],
        step_s=step_s,
        pooling=ready.loaded.pooling,
        drafting=str(ready.drafter or ""),
        adapters=adapters,
        thread_budget=int(ready.caps.props.get("thread_budget", 0)),
    )


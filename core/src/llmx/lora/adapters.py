"""Adapters: those of one engine by name; load, unload and pin, and what a request needs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pluggy

from llmx.config import EngineConfig, LoraConfig
from llmx.errors import ConfigError, LlmxError, ModelNotFound, PlatformError, RequestError, RequestFailed, some_names
from llmx.executor.base import Control, Executor
from llmx.hooks.loader import load_target
from llmx.lora.bind import bind, embedding_targets
from llmx.lora.host import HostMemory
from llmx.lora.off import NamesAdapter, NoAdapters
from llmx.lora.peft import read_peft
from llmx.lora.slots import Adapter, AdapterSlots
from llmx.program.ops import Model
from llmx.request import Request

__all__ = ["Adapters", "adapters_of"]

MAX_LOADED = 16384  # names


class Adapters(NoAdapters):
    """Of one engine. `slots` are the executor's. model: as all `ranks` have it together."""

    def __init__(self, config: LoraConfig, model: Model, executor: Executor, ranks: int = 1) -> None:
        self._ranks = ranks
        self._config, self._model, self._executor = config, model, executor
        self._named: dict[str, Adapter] = {}
        self.slots = AdapterSlots(config.max_loras, self._put, self._drop)
        self.memory = HostMemory(config.max_host)
        self.resolvers: dict[str, Callable[[str], str | None]] = {}

    def __len__(self) -> int:
        return len(self._named)

    def load(self, name: str, path: str, running: Iterable[Request], *, in_place: bool = False, pin: bool = False) -> dict[str, Any]:
        """Read an adapter and serve it as `name`; the facts about it. in_place: another one of that name is replaced, requests that had begun keep it.

        Where that one was pinned, this one is, and has a slot at once if one is free. Raises RequestError naming the file and what is wrong with it; then
        nothing changed. pin: as `pin` afterwards, which raises when no slot is free; it is loaded then.
        """
        if not name or len(name) > 256:
            raise RequestError(f"lora_name is {name[:60]!r}: give a name of 1 to 256 characters", field="lora_name")
        before = self._named.get(name)
        if before is not None and not in_place:
            if before.path == path:
                return self.pin(name, running) if pin else self._facts(before)
            raise RequestError(f"an adapter {name!r} is loaded already, from {before.path}: unload it first, or set load_inplace", field="lora_name")
        if len(self._named) >= MAX_LOADED and before is None:
            raise RequestError(f"{len(self._named)} adapters are loaded, which is the limit: unload one first", field="lora_name")
        adapter = self._read(name, path)
        self._name(adapter, before)
        self.slots.sweep(running)
        if pin:
            return self.pin(name, running)
        if adapter.pinned:
            self.slots.take(adapter, running)
        return self._facts(adapter)

    def _name(self, adapter: Adapter, before: Adapter | None) -> None:
        """Serve an adapter under its name. Requests that have the one before keep it."""
        if before is not None:
            adapter.pinned, before.pinned, before.gone = before.pinned, False, True
            self.memory.forget(before)
        self._named[adapter.name] = adapter
        self.memory.use(adapter)

    def _present(self, name: str) -> Adapter:
        """The adapter of a name, with its matrices in host memory: read again where they made room for others.

        Files that changed meanwhile are another adapter, as if it had been loaded again. Raises ModelNotFound, RequestError.
        """
        adapter = self.find(name)
        if adapter.parts:
            self.memory.use(adapter)
            return adapter
        read = self._read(name, adapter.path)
        if read.digest != adapter.digest:
            self._name(read, adapter)
            return read
        adapter.parts = read.parts
        self.memory.use(adapter)
        return adapter

    def resolve(self, name: str, running: Iterable[Request]) -> dict[str, Any]:
        """The facts about an adapter, loaded now where a resolver finds one that nobody loaded; {} when there is none. Raises RequestError."""
        if name in self._named:
            return self._facts(self._named[name])
        for resolver, find in self.resolvers.items():
            try:
                path = find(name)
            except (LlmxError, OSError) as error:
                raise RequestError(f"adapter {name[:60]!r}: the resolver {resolver!r} failed: {error}", field="model") from error
            if path is not None:
                return self.load(name, path, running)
        return {}

    def _read(self, name: str, path: str) -> Adapter:
        try:
            read = read_peft(str(Path(path).expanduser()))
            if read.rank > self._config.max_rank:
                why = f"its rank is {read.rank}, but --max-lora-rank is {self._config.max_rank}: start with a larger one"
                raise RequestError(f"adapter {name!r} ({path}): {why}", field="lora_path")
            parts = bind(read, self._model)
            beyond = bool(read.whole) or bool(parts.keys() & embedding_targets(self._model))
            if beyond and not self._executor.limits.has("lora.embeddings"):
                why = "it adapts the embedding or has whole modules (modules_to_save), which this platform does not apply: merge it into the model's weights"
                raise RequestError(f"adapter {name!r} ({path}): {why}", field="lora_path")
            if self._ranks > 1 and read.settings.dora:
                why = "DoRA needs the length of whole rows, which no rank has: start with --tensor-parallel-size 1, or merge it into the model's weights"
                raise RequestError(f"adapter {name!r} ({path}): {why}", field="lora_path")
        except RequestError:
            raise
        except (LlmxError, OSError) as error:
            raise RequestError(f"adapter {name!r}: {error}", field="lora_path") from error
        except MemoryError as error:
            why = "host memory ran out while it was read: unload others, or start with a smaller --max-cpu-loras"
            raise RequestFailed(f"adapter {name!r} ({path}): {why}", field="lora_path") from error
        return Adapter(name, path, read.digest, read.rank, parts, read.settings.base)

    def _facts(self, adapter: Adapter) -> dict[str, Any]:
        return {
            "name": adapter.name, "path": adapter.path, "rank": adapter.rank, "digest": adapter.digest.hex(), "pinned": adapter.pinned, "bytes": adapter.nbytes,
        }  # fmt: skip

    def pin(self, name: str, running: Iterable[Request]) -> dict[str, Any]:
        """Bring an adapter into a slot and keep it there until it is unloaded. Raises RequestError when no slot is free for that."""
        adapter = self._present(name)
        if adapter.slot < 0 and not self.slots.take(adapter, running):
            if adapter.failed is not None and not self.slots.all_pinned:
                raise adapter.failed
            raise RequestError(f"adapter {name!r} cannot be pinned: all {self._config.max_loras} slots are in use or pinned (--max-loras)", field="lora_name")
        adapter.pinned = True
        return self._facts(adapter)

    def unload(self, name: str, running: Iterable[Request]) -> None:
        """Serve an adapter no more. Requests that had begun keep it until they end. Raises ModelNotFound."""
        adapter = self.find(name)
        del self._named[name]
        self.memory.forget(adapter)
        adapter.gone, adapter.pinned = True, False
        self.slots.sweep(running)

    def find(self, name: str) -> Adapter:
        """The adapter of a name. Raises ModelNotFound."""
        if name not in self._named:
            have = f"loaded are {some_names(self._named)}" if self._named else "none is loaded"
            raise ModelNotFound(f"adapter {name[:60]!r} is not loaded: {have}", field="lora_name")
        return self._named[name]

    @property
    def in_use(self) -> tuple[int, int, int]:
        """(device slots that hold an adapter, slots, adapters brought into one since the start)."""
        return self.slots.in_use, self._config.max_loras, self.slots.swaps

    def facts(self) -> list[dict[str, Any]]:
        """Each adapter: name, path, rank, digest, pinned, bytes."""
        return [self._facts(one) for one in self._named.values()]

    # -- requests ------------------------------------------------------------------------------------------------------

    def check(self, message: NamesAdapter) -> None:
        """Raise ModelNotFound when a request names an adapter that is not loaded, RequestError for one that cannot be read again."""
        if message.lora:
            self._present(message.lora)

    def fields(self, message: NamesAdapter) -> dict[str, Any]:
        """Fields of its Request."""
        return {"adapter": self.find(message.lora)} if message.lora else {}

    # -- the executor's slots ------------------------------------------------------------------------------------------

    def _put(self, slot: int, adapter: Adapter) -> None:
        self._control("lora_add", {"slot": slot, "parts": adapter.parts})

    def _drop(self, slot: int) -> None:
        self._control("lora_remove", {"slot": slot})

    def _control(self, kind: str, args: dict[str, Any]) -> None:
        reply = self._executor.control(Control(kind, args))
        if not reply.ok:
            raise PlatformError(f"{kind} of slot {args['slot']}: {reply.error}")


def adapters_of(config: EngineConfig, model: Model, executor: Executor, manager: pluggy.PluginManager) -> Adapters | None:
    """The adapters that the configuration names, loaded; None where they are off. Raises ConfigError."""
    lora = config.lora
    if not lora.on:
        return None
    if not executor.limits.has("lora"):
        raise ConfigError("enable_lora: the executor of this platform applies no adapters: merge them into the model's weights", field="enable_lora")
    adapters = Adapters(lora, model, executor, config.platform.tensor_parallel_size)
    defs = [one for listed in manager.hook.llmx_lora_resolvers(config=config) for one in listed]
    adapters.resolvers = {one.name: load_target(one.target)(config) for one in defs}
    for name, path in lora.modules:
        try:
            adapters.load(name, path, ())
        except RequestError as error:
            raise ConfigError(f"lora_modules: {error}", field="lora_modules") from error
    return adapters

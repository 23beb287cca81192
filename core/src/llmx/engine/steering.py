"""Steering: what an administrator asks of a living engine process, seen from the API process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from llmx import errors
from llmx.engine.messages import Control, Controlled
from llmx.engine.questions import NOBODY, Questions
from llmx.engine.running import Running
from llmx.engine.supervisor import Supervisor
from llmx.errors import RequestAborted, RequestError

if TYPE_CHECKING:
    from llmx.engine.hub_adapters import HubAdapters

__all__ = ["PAUSE_MODES", "Steering"]

PAUSE_MODES = ("keep", "wait", "abort")
_PROFILE_S = 60.0  # to write a long profile
_LOOK_S = 0.05  # between two looks whether those have ended whom `pause` lets end


class Steering:
    """Of one AsyncEngine. running: its requests, by id. check: raises EngineDead while the engine is not up."""

    def __init__(self, supervisor: Supervisor, questions: Questions, running: Mapping[str, Running], check: Callable[[], None]) -> None:
        self._supervisor, self._questions, self._running, self._check = supervisor, questions, running, check
        self.paused = False
        self.adapters: dict[str, dict[str, Any]] = {}  # LoRA adapters by name: path, rank, digest, pinned, bytes
        self.loads: dict[str, Control] = {}  # what brought those that came after the start
        self.hub_adapters: HubAdapters | None = None  # made when a name is first looked for on the hub

    async def pause(self, mode: str = "keep") -> None:
        """Start no more steps; new requests wait. Also for engine processes that are started after this one died.

        mode: what becomes of the requests that are here: keep (they go on after `resume`), wait (they end first; then this returns) or abort
        (each ends with RequestAborted).
        """
        self._check()
        before = list(self._running.values())
        self.paused = True
        self._stand()
        while not (await self._ask("pause", mode if mode == "wait" else ""))["paused"]:
            await asyncio.sleep(_LOOK_S)
        if mode == "abort":
            for one in before:
                one.fail(RequestAborted("the engine was paused, and what it was working on was ended: send the request again"))

    async def resume(self) -> None:
        """Go on after `pause`."""
        self.paused = False
        self._stand()
        await self._ask("resume")

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> dict[str, Any]:
        """Forget all prompt starts: {"blocks_dropped", "blocks_in_use"}. Requests keep the blocks that they use.

        reset_running_requests: they are computed again from their first token, and no block is in use.
        """
        return await self._ask("reset_prefix_cache", "running" if reset_running_requests else "")

    async def start_profile(self, folder: str) -> dict[str, Any]:
        """Record steps and Python functions of the engine process until `stop_profile`. Raises Conflict when it does already."""
        return await self._ask("start_profile", folder)

    async def stop_profile(self) -> dict[str, Any]:
        """Write what was recorded: {"files", "steps"}. Raises Conflict when nothing is being recorded."""
        return await self._ask("stop_profile", timeout_s=_PROFILE_S)

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False, pin: bool = False) -> dict[str, Any]:
        """Serve a LoRA adapter from a folder as `name`: the facts about it. Also in engine processes that are started after this one died.

        in_place: one of that name is replaced. pin: it keeps its device slot. Raises RequestError with what is wrong with it, or when no slot is free for
        that; then it is loaded all the same.
        """
        given = {"name": name, "path": path, "in_place": in_place}
        facts = self.adapters[name] = await self._ask("load_lora", json.dumps(given))
        self._keep(name, path, pin=bool(facts["pinned"]))
        if pin:
            facts = self.adapters[name] = await self._ask("pin_lora", json.dumps({"name": name}))
            self._keep(name, path, pin=True)
        return facts

    def _keep(self, name: str, path: str, *, pin: bool) -> None:
        """It is loaded, and pinned, in a process that replaces this one too."""
        self.loads[name] = Control(NOBODY, "load_lora", json.dumps({"name": name, "path": path, "in_place": True, "pin": pin}))
        self._stand()

    async def resolve_adapter(self, name: str) -> bool:
        """Whether there is an adapter of this name; one that a resolver finds is loaded. Raises RequestError with what is wrong with it."""
        facts = await self._ask("resolve_lora", json.dumps({"name": name}))
        if facts and name not in self.adapters:
            self.adapters[name] = facts
            self._keep(name, facts["path"], pin=bool(facts["pinned"]))
        return bool(facts)

    async def unload_adapter(self, name: str) -> None:
        """Serve a LoRA adapter no more; requests that had begun keep it. Raises ModelNotFound."""
        await self._ask("unload_lora", json.dumps({"name": name}))
        self.adapters.pop(name, None)
        self.loads.pop(name, None)
        self._stand()

    def _stand(self) -> None:
        """What a process that replaces this one is told first."""
        self._supervisor.standing = [*([Control(NOBODY, "pause")] if self.paused else []), *self.loads.values()]

    async def _ask(self, what: str, argument: str = "", **limit: float) -> dict[str, Any]:
        self._check()
        answer: Controlled = await self._questions.ask(lambda token: Control(token, what, argument), **limit)
        if answer.error is not None:
            kind: type[RequestError] = getattr(errors, answer.kind)
            raise kind(answer.error, field=answer.field)
        return answer.facts

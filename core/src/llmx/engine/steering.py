"""Steering: what an administrator asks of a living engine process, seen from the API process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from llmx import errors
from llmx.engine.messages import Control, Controlled
from llmx.engine.questions import NOBODY, Questions
from llmx.engine.running import Running
from llmx.engine.supervisor import Supervisor
from llmx.errors import RequestAborted, RequestError

__all__ = ["PAUSE_MODES", "Steering"]

PAUSE_MODES = ("keep", "wait", "abort")
_PROFILE_S = 60.0  # to write a long profile
_LOOK_S = 0.05  # between two looks whether those have ended whom `pause` lets end


class Steering:
    """Of one AsyncEngine. running: its requests, by id. check: raises EngineDead while the engine is not up."""

    def __init__(self, supervisor: Supervisor, questions: Questions, running: Mapping[str, Running], check: Callable[[], None]) -> None:
        self._supervisor, self._questions, self._running, self._check = supervisor, questions, running, check
        self.paused = False

    async def pause(self, mode: str = "keep") -> None:
        """Start no more steps; new requests wait. Also for engine processes that are started after this one died.

        mode: what becomes of the requests that are here: keep (they go on after `resume`), wait (they end first; then this returns) or abort
        (each ends with RequestAborted).
        """
        self._check()
        before = list(self._running.values())
        self.paused, self._supervisor.standing = True, [Control(NOBODY, "pause")]
        while not (await self._ask("pause", mode if mode == "wait" else ""))["paused"]:
            await asyncio.sleep(_LOOK_S)
        if mode == "abort":
            for one in before:
                one.fail(RequestAborted("the engine was paused, and what it was working on was ended: send the request again"))

    async def resume(self) -> None:
        """Go on after `pause`."""
        self.paused, self._supervisor.standing = False, []
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

    async def _ask(self, what: str, argument: str = "", **limit: float) -> dict[str, Any]:
        self._check()
        answer: Controlled = await self._questions.ask(lambda token: Control(token, what, argument), **limit)
        if answer.error is not None:
            kind: type[RequestError] = getattr(errors, answer.kind)
            raise kind(answer.error)
        return answer.facts

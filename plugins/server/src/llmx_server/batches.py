"""Batches: of each key one after the other, from a file of requests to files of answers; a batch that broke off goes on at the next start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp

from llmx.config import EngineConfig
from llmx.errors import RequestError
from llmx_server.batch_lines import MAX_LINES, Outcome, Runner, Usage, finished_lines, read_lines, run_lines
from llmx_server.body import shorten
from llmx_server.caller import Caller
from llmx_server.callers import Callers
from llmx_server.errors import NotFound
from llmx_server.file_store import FileStore, new_id
from llmx_server.in_process import InProcess
from llmx_server.saved_json import save_json
from llmx_server.serving import Host
from llmx_server.turns import Turns

__all__ = ["WINDOW_S", "Batches", "start_batches"]

WINDOW_S = 24 * 3600  # in which a batch must be done; OpenAI's only completion_window
_KEPT_S = 30 * 24 * 3600  # since its creation; forgotten at a start
_AT_ONCE = 64  # lines that run at the same time at most
_BATCHES = 64  # that run at the same time at most, each of another key
_ENDED = ("completed", "failed", "expired", "cancelled")

_log = logging.getLogger("llmx.server")


class Batches:
    """FOLDER/batches holds NAME.json, OpenAI's batch object and its owner, and while it runs NAME.answers and NAME.errors.

    at_once: lines that run at the same time. leaving: the server ends.
    callers: where keys are asked for; lines run as their owner then, with what is the owner's and within the owner's limits.
    Batches of one owner run in the order of their creation, those of different owners side by side, with as many lines each.
    """

    def __init__(self, files: FileStore, post: InProcess, *, at_once: int, leaving: Callable[[], bool], callers: Callers | None = None) -> None:
        self.files = files
        self._post, self._at_once, self._leaving, self._callers = post, at_once, leaving, callers
        self._folder = files.folder / "batches"
        self._folder.mkdir(exist_ok=True)
        self._batches: dict[str, dict[str, Any]] = {}
        for path in self._folder.glob("*.json"):
            batch = msgspec.json.decode(path.read_bytes())
            if batch["status"] in _ENDED and batch["created_at"] < files.clock() - _KEPT_S:
                path.unlink()
            else:
                self._batches[batch["id"]] = batch
        self._turns = Turns(at_once)
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}  # owner -> id of the batch, and what runs it
        self._broken: set[str] = set()  # ids of those that stopped with an error of ours
        self._closed = False

    def start(self) -> None:
        """Go on with what has not ended; call it once requests are taken."""
        self._broken.clear()
        self._fill()

    async def close(self) -> None:
        """Stop; what has not ended goes on at the next start. The folder is free then."""
        self._closed = True
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.files.close()

    def all(self, caller: Caller) -> list[dict[str, Any]]:
        """The batch objects that the caller sees, oldest first."""
        return sorted((one for one in self._batches.values() if caller.sees(one.get("owner", ""))), key=lambda one: str(one["id"]))

    def get(self, batch_id: str, caller: Caller) -> dict[str, Any]:
        """A batch object. Raises NotFound, also where the caller may not see it."""
        found = self._batches.get(batch_id)
        if found is None or not caller.sees(found.get("owner", "")):
            raise NotFound(f"batch {shorten(batch_id)} is not here: GET /v1/batches lists those that are", field="batch_id")
        return found

    def reads(self, file_id: str) -> str | None:
        """The batch that still needs a file."""
        return next((one["id"] for one in self._batches.values() if one["input_file_id"] == file_id and one["status"] not in _ENDED), None)

    def create(
        self, endpoint: str, input_file_id: str, metadata: dict[str, str] | None, output_expires_in_s: int | None, caller: Caller
    ) -> dict[str, Any]:
        """A new batch of the caller, which runs when the caller's own before it have ended. Raises NotFound for a file that the caller does not see."""
        self.files.get(input_file_id, caller, "input_file_id")
        now = int(self.files.clock())
        batch: dict[str, Any] = {
            "id": new_id("batch_"),
            "object": "batch",
            "endpoint": endpoint,
            "input_file_id": input_file_id,
            "completion_window": "24h",
            "status": "validating",
            "errors": None,
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + WINDOW_S,
            **dict.fromkeys(f"{what}_at" for what in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")),
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "usage": Usage().shown(),
            "metadata": metadata,
            "output_expires_after": output_expires_in_s,
            "owner": caller.name,
        }
        self._batches[batch["id"]] = batch
        self._save(batch)
        self.start()
        return batch

    def cancel(self, batch_id: str, caller: Caller) -> dict[str, Any]:
        """Stop a batch. What is answered already is kept. Raises NotFound; RequestError for one that has ended."""
        batch = self.get(batch_id, caller)
        if batch["status"] in _ENDED:
            raise RequestError(f"batch {shorten(batch_id)} is {batch['status']}: only one that has not ended can be cancelled", field="batch_id")
        if batch["status"] != "cancelling":
            self._becomes(batch, "cancelling")
        running, task = self._running.get(batch.get("owner", ""), ("", None))
        if task is not None and running == batch_id:
            task.cancel()
        else:
            self._end(batch, "cancelled")
        return batch

    def _fill(self) -> None:
        """Run the oldest batch of each owner who has none that runs."""
        if self._closed or self._leaving():
            return
        for batch in self.all(Caller()):
            owner = batch.get("owner", "")
            if batch["status"] not in _ENDED and owner not in self._running and batch["id"] not in self._broken and len(self._running) < _BATCHES:
                task = asyncio.create_task(self._run(batch))
                self._running[owner] = (batch["id"], task)
                task.add_done_callback(partial(self._ran, batch))

    def _ran(self, batch: dict[str, Any], task: asyncio.Task[None]) -> None:
        del self._running[batch.get("owner", "")]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken.add(batch["id"])
            _log.error("batch %s stopped, it goes on when another one is created or at the next start", batch["id"], exc_info=error)
        self._fill()

    async def _run(self, batch: dict[str, Any]) -> None:
        """From where it stands to its end. One that is cancelled has the status cancelling, and comes here once more."""
        if batch["status"] == "validating":
            await self._validate(batch)
        if batch["status"] == "in_progress":
            in_time = await self._answer(batch)
            if self._leaving():
                return
            if in_time:
                self._becomes(batch, "finalizing")
        if batch["status"] == "failed":
            return
        last = {"in_progress": "expired", "finalizing": "completed", "cancelling": "cancelled"}[batch["status"]]
        self._end(batch, last)

    async def _validate(self, batch: dict[str, Any]) -> None:
        """Count the lines; a batch that has none, or too many, fails as a whole."""
        total = await asyncio.to_thread(_count, self.files.path(batch["input_file_id"], Caller()))
        if batch["status"] != "validating":
            return  # cancelled meanwhile
        batch["request_counts"]["total"] = total
        if 0 < total <= MAX_LINES:
            self._becomes(batch, "in_progress")
            return
        why = f"the file has {total} requests, at most {MAX_LINES} are taken: split it" if total else "the file has no requests"
        fault = {"code": "too_many_requests" if total else "empty_file", "message": why, "line": None, "param": "input_file_id"}
        batch["errors"] = {"object": "list", "data": [fault]}
        self._becomes(batch, "failed")

    async def _answer(self, batch: dict[str, Any]) -> bool:
        """Run the lines that have no outcome yet. False: some had none when the window ended."""
        counts, usage, name = batch["request_counts"], Usage(), batch["id"].removeprefix("batch_")
        with self._path(batch, "answers").open("a+b") as answers, self._path(batch, "errors").open("a+b") as errors:
            done, bodies = await asyncio.to_thread(finished_lines, answers)
            failed, _ = await asyncio.to_thread(finished_lines, errors)
            counts["completed"], counts["failed"] = len(done), len(failed)
            for body in bodies:
                usage.add(body)

            def write(outcome: Outcome) -> None:
                file, seen, count = (answers, done, "completed") if outcome.ok else (errors, failed, "failed")
                file.write(outcome.encoded(name))
                file.flush()  # to the system: it outlives this process
                seen.add(outcome.line.number)
                counts[count] += 1
                if outcome.ok and outcome.answer is not None:
                    usage.add(outcome.answer.body)
                batch["usage"] = usage.shown()

            runner = Runner(self._post, self._turns, lambda: self._owner(batch))
            with self.files.path(batch["input_file_id"], Caller()).open("rb") as file:
                lines = read_lines(file, batch["endpoint"], frozenset(done | failed))
                try:
                    async with asyncio.timeout(max(batch["expires_at"] - self.files.clock(), 0)):
                        await run_lines(lines, runner, write, at_once=self._at_once, leaving=self._leaving)
                    return True
                except TimeoutError:
                    file.seek(0)
                    for line in read_lines(file, batch["endpoint"], frozenset(done | failed)):
                        write(Outcome(line, fault=("batch_expired", f"the batch did not come to this line within {WINDOW_S // 3600} hours")))
                    return False

    def _end(self, batch: dict[str, Any], status: str) -> None:
        """Make files of what was written, then end. After a crash in between, it is done again."""
        for kind, key in (("answers", "output_file_id"), ("errors", "error_file_id")):
            path = self._path(batch, kind)
            if batch[key] is None and path.exists() and path.stat().st_size:
                batch[key] = new_id("file-")
                self._save(batch)
            if batch[key] is not None:
                name = f"{batch['id']}_{'output' if kind == 'answers' else 'error'}.jsonl"
                self.files.adopt(batch[key], path, name, batch["output_expires_after"], batch.get("owner", ""))
            path.unlink(missing_ok=True)
        self._becomes(batch, status)

    def _owner(self, batch: dict[str, Any]) -> Caller:
        return self._callers.owner(batch.get("owner", "")) if self._callers else Caller()

    def _path(self, batch: dict[str, Any], kind: str) -> Path:
        return self._folder / f"{batch['id']}.{kind}"

    def _becomes(self, batch: dict[str, Any], status: str) -> None:
        batch["status"] = status
        batch[f"{status}_at"] = int(self.files.clock())
        self._save(batch)

    def _save(self, batch: dict[str, Any]) -> None:
        save_json(self._path(batch, "json"), batch)


def start_batches(config: EngineConfig, host: Host, make_app: Callable[[], ASGIApp], callers: Callers | None) -> Batches:
    """The batches of a server's folder; they run once requests are taken. Raises ConfigError when another server uses it."""
    files = FileStore(config.server.files_dir, config.server.files_max_bytes)
    at_once = max(1, min(_AT_ONCE, config.scheduler.max_num_seqs // 2))  # the other half is for clients that wait
    return Batches(files, InProcess(make_app), at_once=at_once, leaving=lambda: host.phase == "draining", callers=callers)


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())

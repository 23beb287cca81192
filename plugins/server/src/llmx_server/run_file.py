"""run_file: a file of requests answered by an engine of one's own, without a server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmx.config import EngineConfig
from llmx_server.app import create_app, unguarded
from llmx_server.batch_lines import Outcome, Runner, Usage, finished_lines, read_lines, run_lines
from llmx_server.in_process import InProcess
from llmx_server.turns import Turns

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["Counts", "run_file"]


@dataclass(slots=True)
class Counts:
    """What became of the lines. skipped: those that the output had already."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    output_tokens: int = 0


async def run_file(
    engine: AsyncEngine,
    config: EngineConfig,
    source: Path,
    target: Path,
    on_outcome: Callable[[Outcome], None],
    others: Sequence[tuple[AsyncEngine, EngineConfig]] = (),
) -> Counts:
    """Start an engine and the `others` beside it, answer the lines of `source` that `target` lacks, and close them. on_outcome hears of each line.

    Raises what starting the engine raises, and OSError when the output cannot be written.
    """
    engines = [engine, *(other for other, _ in others)]
    counts, usage, name = Counts(), Usage(), secrets.token_hex(12)
    try:
        await asyncio.gather(*(one.start() for one in engines))
        # Nobody connects: no keys to ask for, and no folder of batches to share with a server.
        alone = replace(config.server, api_keys=(), api_key_file="", cache_salt_per_key=False, files_dir="")
        app = create_app(engine, replace(config, server=alone), others=others)
        with source.open("rb") as requests, target.open("a+b") as answers:
            done, _ = await asyncio.to_thread(finished_lines, answers)
            counts.skipped = len(done)

            def write(outcome: Outcome) -> None:
                answers.write(outcome.encoded(name))
                answers.flush()
                if outcome.ok and outcome.answer is not None:
                    counts.answered += 1
                    usage.add(outcome.answer.body)
                else:
                    counts.failed += 1
                on_outcome(outcome)

            lines = read_lines(requests, None, frozenset(done))
            at_once = config.scheduler.max_num_seqs
            runner = Runner(InProcess(lambda: unguarded(app)), Turns(at_once))
            await run_lines(lines, runner, write, at_once=at_once, leaving=lambda: False)
        counts.output_tokens = usage.output_tokens
        return counts
    finally:
        await asyncio.gather(*(one.close() for one in engines))

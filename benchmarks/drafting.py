"""What drafting gives on a CPU: steps, drafts and processor time of four tasks, with no drafter, n-grams and suffixes. Answers must be equal.

    python -m benchmarks.drafting [--batch 1] [--new 120] [--threads 1] [--rounds 2]

Prompts are computed before the clock starts. Processor time counts, so that a busy machine disturbs less. Every round asks with a text of its own, so
that suffixes of an earlier round are no help.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from llmx import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[1]
CODE = (ROOT / "core/src/llmx/sched/preempt.py").read_text(encoding="utf-8")
TEXT = """The harbour of the old town was built of grey stone, and for three hundred years the fishermen had brought their boats in under its walls when the
north wind rose. In the spring of that year a surveyor came from the capital with brass instruments in a wooden case. He measured the depth of the
water at every quay, wrote the numbers into a small green book, and spoke to nobody except the woman who kept the lighthouse. She told him that
the sand moved every winter, that no map of the bay had ever been right for more than a season, and that he would do better to ask the birds.
He laughed, but he wrote that down as well. When the survey was printed the following year it carried on its last page a short note, which said
that the depths were those of the month of May and that mariners should trust the keeper of the light before they trusted the chart.""".replace("\n", " ")
METHODS: dict[str, dict[str, Any] | None] = {"off": None, "ngram": {"method": "ngram"}, "suffix": {"method": "suffix"}}


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and how it is sampled."""

    prompt: str
    sampling: dict[str, Any]


TASKS = {
    "repeat a text": Task(f"{TEXT}\n\nThe same text again:\n\n{TEXT[:60]}", {"temperature": 0.0}),
    "edit code": Task(f"```python\n{CODE}```\nThe same file, with choose_victim renamed to pick_victim:\n```python\n{CODE[:60]}", {"temperature": 0.0}),
    "story, temperature 1": Task("Once upon a time, in a small village by the sea, there lived", {"temperature": 1.0, "seed": 7}),
    "essay, temperature 0.8": Task("Explain in your own words why the sky is blue and sunsets are red.\n", {"temperature": 0.8, "seed": 3}),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement; the smallest one of several rounds counts."""

    seconds: float
    steps: int
    drafted: int
    accepted: int
    tokens: list[list[int]]


def run(llm: LLM, task: Task, batch: int, new: int, number: int) -> Run:
    """One round of a task."""
    prompts = [f"({number}.{index}) {task.prompt}" for index in range(batch)]
    params = SamplingParams(max_tokens=new, ignore_eos=True, **task.sampling)
    llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0.0))
    stats = llm._engine.stats()
    before, began = (stats.steps, stats.draft_tokens, stats.accepted_tokens), process_time()
    outputs = llm.generate(prompts, params)
    seconds, stats = process_time() - began, llm._engine.stats()
    tokens = [output.outputs[0].token_ids for output in outputs]
    return Run(seconds, stats.steps - before[0], stats.draft_tokens - before[1], stats.accepted_tokens - before[2], tokens)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("batch", 1), ("new", 120), ("threads", 1), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    options: dict[str, Any] = {"platform": "cpu", "threads": asked.threads, "max_model_len": 2048, "num_blocks": 128 * (asked.batch + 8)}
    engines = {name: LLM(speculative_config=spec, **options) for name, spec in METHODS.items()}
    print("| task | method | steps | drafted | accepted | processor time | times as fast |\n|---|---|---|---|---|---|---|")
    for title, task in TASKS.items():
        runs = {name: [run(llm, task, asked.batch, asked.new, number) for number in range(asked.rounds)] for name, llm in engines.items()}
        best = {name: min(rounds, key=lambda one: one.seconds) for name, rounds in runs.items()}
        for name, one in best.items():
            if [each.tokens for each in runs[name]] != [each.tokens for each in runs["off"]]:
                raise SystemExit(f"{title}: {name} changed an answer")
            speed = best["off"].seconds / one.seconds
            print(f"| {title} | {name} | {one.steps} | {one.drafted} | {one.accepted} | {one.seconds:.2f} s | {speed:.2f} |", flush=True)


if __name__ == "__main__":
    main()

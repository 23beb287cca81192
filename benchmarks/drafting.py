"""What drafting gives on a CPU: steps, drafts and processor time of some tasks, with no drafter, n-grams and suffixes. Answers must be equal.

    python -m benchmarks.drafting [--batches 1 8 32] [--tasks NAME ...] [--methods off ngram suffix] [--new 400] [--threads 1] [--rounds 2]

Prompts are computed before the clock starts. Processor time counts, so that a busy machine disturbs less, and methods take turns in every round. Every
round asks with a text of its own, so that suffixes of an earlier round are no help.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from difflib import SequenceMatcher
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
that the depths were those of the month of May and that mariners should trust the keeper of the light before they trusted the chart. The printer of
the survey, a careful man named Aldous Finch, thought that the note was a joke, and he very nearly left it out. His daughter, who set the type, had
been to the town as a child and remembered the fog, the bells on the buoys and the smell of tar in the narrow streets. She told her father that the
note was the only line in the whole book that would save a life, and she set it in a larger size than all the others. In the autumn a schooner loaded
with timber came up the coast in the dark. Its captain had bought the new chart the week before, and because the last page was printed so large he
read it before he read anything else. He dropped his anchor outside the bar, lit his lanterns, and waited for the morning. At dawn the keeper of the
light rowed out to him and showed him the channel, which had moved forty yards to the east since the month of May. The captain gave her a barrel of
apples, and they drank a cup of coffee on the deck.""".replace("\n", " ")  # 400 tokens and some
METHODS: dict[str, dict[str, Any] | None] = {"off": None, "ngram": {"method": "ngram"}, "suffix": {"method": "suffix"}}


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and how it is sampled."""

    prompt: str
    sampling: dict[str, Any]


TASKS = {
    "rewrite a text": Task(f"{TEXT}\n\nThe same text again:\n\n{TEXT[:60]}", {"temperature": 0.0}),
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


def compare(engines: dict[str, LLM], task: Task, batch: int, new: int, rounds: int) -> dict[str, Run]:
    """The best run of each engine, in turn. Raises SystemExit when an answer differs from that of the first one."""
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for number in range(rounds):
        for name, llm in engines.items():
            runs[name].append(run(llm, task, batch, new, number))
    first = next(iter(runs.values()))
    for name, each in runs.items():
        if [one.tokens for one in each] != [one.tokens for one in first]:
            raise SystemExit(f"{name} changed an answer to {task.prompt[-60:]!r}")
    return {name: min(each, key=lambda one: one.seconds) for name, each in runs.items()}


def repeated(given: list[int], answer: list[int], least: int = 4) -> float:
    """The share of the given tokens that the answer has too, in the same order, in runs of `least` or more."""
    blocks = SequenceMatcher(None, given, answer, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks if block.size >= least) / len(given)


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("new", 400), ("threads", 1), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    asked = parser.parse_args()
    options: dict[str, Any] = {"platform": "cpu", "threads": asked.threads, "max_model_len": 2048, "num_blocks": 72 * (max(asked.batches) + 2)}
    engines = {name: LLM(speculative_config=METHODS[name], **options) for name in asked.methods}
    print("| task | batch | method | steps | drafted | accepted | processor time | times as fast |\n|---|---|---|---|---|---|---|---|")
    for title in asked.tasks:
        for batch in asked.batches:
            best = compare(engines, TASKS[title], batch, asked.new, asked.rounds)
            slowest = best[asked.methods[0]].seconds
            for name, one in best.items():
                counts = f"{one.steps} | {one.drafted} | {one.accepted}"
                print(f"| {title} | {batch} | {name} | {counts} | {one.seconds:.2f} s | {slowest / one.seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()

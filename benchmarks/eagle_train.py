"""Trains a small EAGLE head on SmolLM2-135M and measures what it gives: minutes on two CPU cores.

    python -m benchmarks.eagle_train DIR [--answers 1749] [--new 80] [--steps 800] [--batch 4] [--ahead 2] [--tokens 4] [--threads 2]

The text is the model's own: given its chat template up to the user's words it writes questions (temperature 1, top_p 0.95, seeds 0, 1, ...), which it answers
greedily; the engine then reads that again and gives its rows. The head learns the model's probabilities behind each token, in many small steps: it begins with
the best straight line from embedding and row to the next row, and in the last two fifths of the steps it reads rows of its own too, as it does when it guesses
several tokens. Tokens that are seldom said are left out of the training's softmax: it is 49,152 ids wide and most of its cost. The checkpoint has the published
names (fc, layers.0, config.json) and shares the model's embedding and head. Measured on UNSEEN, questions that were not trained on: tokens per step of the
model, its own token included.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi
from os.path import commonprefix
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import torch
import transformers
from benchmarks.eagle_head import Head
from benchmarks.make_models import make_model
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import log_softmax, smooth_l1_loss, softmax

from llmx import LLM, PoolingParams, SamplingParams

MODEL = "smollm2-135m-instruct"
MARK, QUESTION_TOKENS, TRIES = "<<<question>>>", 64, 160
SHOWN = 128  # tokens of the answers that are measured
ALONE = 0.6  # share of the steps in which the head reads the model's rows only
LATER = 0.7  # what a guess out of the head's own rows counts
STARTS = 400  # texts from which the head begins
UNSEEN = (
    "How do airplanes stay in the air?", "Write a letter to a landlord about a broken heater.", "What should I pack for a week in the mountains?",
    "Summarize how the internet works.", "Tell me about the history of printing.", "How can I learn to play the guitar?", "What causes inflation?",
    "Give advice to somebody who starts a new job.", "Describe a market in a desert town.", "What is the difference between a virus and a bacterium?",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """A conversation: token ids, and the model's row behind each [T, H]."""

    ids: torch.Tensor
    rows: torch.Tensor


def questions(llm: LLM, count: int) -> list[str]:
    """Up to `count` different ones that the model writes itself when it is given its chat template up to the user's words. None is in UNSEEN."""
    shown = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    opening, found, seed = str(shown).partition(MARK)[0], dict[str, None](), 0
    while len(found) < count:
        sampling = [SamplingParams(temperature=1.0, top_p=0.95, seed=seed + index, max_tokens=QUESTION_TOKENS) for index in range(TRIES)]
        seed += TRIES
        said = [one.outputs[0] for one in llm.generate([opening] * TRIES, sampling, use_tqdm=False)]
        found |= {one.text.strip(): None for one in said if one.finish_reason == "stop" and one.text.strip() and one.text.strip() not in UNSEEN}
    return list(found)[:count]


def answers(count: int, new: int, threads: int) -> list[tuple[list[int], list[int]]]:
    """(token ids of a question with the template around it, and of the model's greedy answer to it)."""
    greedy = SamplingParams(temperature=0.0, max_tokens=new)
    with LLM(MODEL, platform="cpu", threads=threads, max_model_len=1024, max_num_seqs=32) as llm:
        asked = [[{"role": "user", "content": one}] for one in questions(llm, count)]
        outputs = llm.chat(asked, greedy, use_tqdm=False)
    return [(list(output.prompt_token_ids), list(output.outputs[0].token_ids)) for output in outputs]


def read(found: Sequence[tuple[list[int], list[int]]], threads: int) -> list[Text]:
    """The rows that the model's head reads, as the engine itself computes them."""
    with LLM(MODEL, platform="cpu", threads=threads, runner="pooling", max_model_len=1024, max_num_seqs=8) as llm:
        asked = [{"prompt_token_ids": prompt + answer} for prompt, answer in found]
        rows = llm.encode(asked, PoolingParams(task="token_embed", use_activation=False), use_tqdm=False)
    return [
        Text(torch.tensor(prompt + answer), torch.tensor(one.outputs.data, dtype=torch.float32))
        for (prompt, answer), one in zip(found, rows, strict=True)
    ]


class Trainer:
    """Trains a head on texts: the model's choice behind each token, by its probabilities, and its row.

    table: the model's embedding, which is its head too [V, H].
    """

    def __init__(self, config: transformers.LlamaConfig, table: torch.Tensor, texts: Sequence[Text], vocabulary: int) -> None:
        torch.manual_seed(0)
        self.texts, self.table = texts, table
        same = len(commonprefix([text.ids.tolist() for text in texts]))  # of the template, in front of every question
        self.skipped = min(same, min(len(text.ids) for text in texts) // 2)
        begin = texts[:: -(-len(texts) // STARTS)]
        self.head = Head(config, [table[text.ids[self.skipped :]] for text in begin], [text.rows[self.skipped :] for text in begin])
        common = Counter(token for text in texts for token in text.ids.tolist()).most_common(vocabulary)
        self.columns = table[torch.tensor(sorted(token for token, _ in common))]

    def train(self, steps: int, batch: int, ahead: int, rate: float = 1e-3, report: int = 100) -> None:
        """steps: of the optimizer, each with `batch` texts. ahead: tokens that are guessed in a row, from the second on out of the head's own rows."""
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (0.05 * steps)) * (0.5 + 0.5 * cos(pi * (step + 1) / steps)))
        order, rng, began, losses = list[list[Text]](), random.Random(0), monotonic(), list[float]()
        for step in range(1, steps + 1):
            order = order or self._batches(batch, rng)
            loss = self._loss(order.pop(), ahead if step >= ALONE * steps else 1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if step % report == 0 or step == steps:
                print(f"step {step}: loss {sum(losses[-report:]) / len(losses[-report:]):.3f}, {monotonic() - began:.0f} s", flush=True)

    def _batches(self, size: int, rng: random.Random) -> list[list[Text]]:
        """All texts once, those of one batch about equally long."""
        texts, found = rng.sample(self.texts, len(self.texts)), list[list[Text]]()
        for start in range(0, len(texts), 16 * size):
            some = sorted(texts[start : start + 16 * size], key=lambda text: len(text.ids))
            found += [some[index : index + size] for index in range(0, len(some), size)]
        rng.shuffle(found)
        return found

    def _loss(self, texts: Sequence[Text], ahead: int) -> torch.Tensor:
        tokens = nn.utils.rnn.pad_sequence([text.ids for text in texts], batch_first=True)
        rows = nn.utils.rnn.pad_sequence([text.rows for text in texts], batch_first=True)
        place = torch.arange(tokens.shape[1])[None]
        real = ((place < torch.tensor([len(text.ids) for text in texts])[:, None]) & (place >= max(ahead, self.skipped)))[:, 1:]
        wanted, total = rows[:, 1:][real], torch.zeros(())
        chances = softmax(wanted @ self.columns.T, -1)
        for run, out in enumerate(self.head.guesses(self.table[tokens], rows, ahead)):
            found = out[real]
            loss = -(chances * log_softmax(found @ self.columns.T, -1)).sum(-1).mean() + 0.5 * smooth_l1_loss(found, wanted)
            total = total + (LATER if run else 1.0) * loss
        return total


def save(head: Head, config: Any, layers: int, folder: Path) -> Path:
    """The head as a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {key: value for key, value in config.to_dict().items() if value is not None}
    (folder / "config.json").write_text(json.dumps({**said, "num_hidden_layers": layers, "architectures": ["LlamaForCausalLM"]}, indent=1))
    save_file(head.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def measure(folder: Path, tokens: int, new: int, threads: int) -> tuple[float, str]:
    """(tokens per step of the model when every guess is tried, a line of the other figures). Answers must be those without a drafter."""
    asked = [[{"role": "user", "content": one}] for one in UNSEEN]
    greedy = SamplingParams(temperature=0.0, max_tokens=new)
    options: dict[str, Any] = {"platform": "cpu", "threads": threads, "max_model_len": 1024, "max_num_seqs": 8}
    results, times, steps = [], [], []
    spec = {"method": "eagle", "model": str(folder), "num_speculative_tokens": tokens}
    for drafter in (None, spec):
        with LLM(MODEL, speculative_config=drafter, **options) as llm:
            drafting = llm._engine.scheduler.drafting
            if drafting is not None:
                drafting.fixed = True
            began, stats = process_time(), llm._engine.stats()
            before, drafted, right_before = stats.steps, stats.drafts, list(stats.accepted_per_position)
            found = [llm.chat(one, greedy, use_tqdm=False)[0].outputs[0] for one in asked]
            stats = llm._engine.stats()
            times.append(process_time() - began)
            steps.append(stats.steps - before)
            results.append([one.token_ids for one in found])
            if drafting is not None:
                drafts, right = stats.drafts - drafted, [b - a for a, b in zip(right_before, stats.accepted_per_position, strict=True)]
    if results[0] != results[1]:
        raise SystemExit("answers with the head are not those without it")
    per_step = (drafts + sum(right)) / drafts
    rates = ", ".join(f"{count / drafts:.2f}" for count in right)
    return per_step, f"accepted by position {rates}; steps {steps[0]} without and {steps[1]} with it; processor time {times[0]:.1f} s and {times[1]:.1f} s"


def main() -> None:
    """Train, save, measure. Answers are kept in the folder for the next time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    numbers = (("answers", 1749), ("new", 80), ("steps", 800), ("batch", 4), ("ahead", 2), ("vocabulary", 4096), ("layers", 1), ("tokens", 4), ("threads", 2))
    for name, default in numbers:
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    began = monotonic()
    kept = asked.folder / f"answers-{asked.answers}-{asked.new}.json"
    if not kept.exists():
        asked.folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(answers(asked.answers, asked.new, asked.threads)))
    print(f"answers: {monotonic() - began:.0f} s", flush=True)
    found = json.loads(kept.read_text())
    if not found or not all(isinstance(one, list) and len(one) == 2 and all(isinstance(ids, list) for ids in one) for one in found):
        raise SystemExit(f"{kept} does not hold pairs of token ids (question, answer): delete it, and the answers are made again")
    texts = read(found, asked.threads)
    print(f"{len(texts)} texts, {sum(len(text.ids) for text in texts)} tokens with their rows, {monotonic() - began:.0f} s", flush=True)
    source = make_model("bf16", asked.folder)
    base = transformers.AutoConfig.from_pretrained(source)
    table = load_file(source / "model.safetensors")["model.embed_tokens.weight"].float()
    config = transformers.LlamaConfig(**{**base.to_dict(), "num_hidden_layers": asked.layers})
    trainer = Trainer(config, table, texts, asked.vocabulary)
    trainer.train(asked.steps, asked.batch, asked.ahead)
    folder = save(trainer.head, base, asked.layers, asked.folder / "eagle")
    print(f"trained in {monotonic() - began:.0f} s: {folder}", flush=True)
    per_step, rest = measure(folder, asked.tokens, SHOWN, asked.threads)
    print(f"{per_step:.2f} tokens per step; {rest}")


if __name__ == "__main__":
    main()

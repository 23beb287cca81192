"""Trains a small EAGLE head on SmolLM2-135M and measures what it gives: minutes on two CPU cores.

    python -m benchmarks.eagle_train DIR [--answers 96] [--new 128] [--epochs 6] [--layers 1] [--tokens 4] [--threads 2]

The text is what the model itself answers, greedily and at temperature 0.8, to questions put together from SUBJECTS and QUESTIONS below; the head learns to
say what the model would say next from the model's own rows (taken from its weights in bfloat16, in float32). Tokens that no answer has are left out of the
training's softmax: it is 49,152 ids wide and most of its cost. The checkpoint has the published names (fc, layers.0, config.json) and shares the
model's embedding and head. Measured on UNSEEN, whose subjects and questions were not trained on: tokens per step of the model, its own token included.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import torch
import transformers
from benchmarks.make_models import make_model
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

from llmx import LLM, SamplingParams

MODEL = "smollm2-135m-instruct"
SUBJECTS = (
    "rain", "bread", "the moon", "bicycles", "gravity", "cats", "the Roman Empire", "photosynthesis", "money", "sleep", "rivers", "chess", "magnets", "tea",
    "bees", "the heart", "earthquakes", "books", "trains", "winter", "dreams", "salt", "the brain", "whales", "maps", "glass", "friendship", "football",
    "volcanoes", "computers", "paper", "democracy", "apples", "vaccines", "music", "cooking", "the ocean", "wood", "stars", "dogs",
)  # fmt: skip
QUESTIONS = (
    "Explain {} to a child.", "What is {}?", "Write a short story about {}.", "Give me five facts about {}.", "Why does {} matter?",
    "Write a poem about {}.", "What are common mistakes people make about {}?", "Describe {} in detail.",
)  # fmt: skip
UNSEEN = (
    "How do airplanes stay in the air?", "Write a letter to a landlord about a broken heater.", "What should I pack for a week in the mountains?",
    "Summarize how the internet works.", "Tell me about the history of printing.", "How can I learn to play the guitar?", "What causes inflation?",
    "Give advice to somebody who starts a new job.", "Describe a market in a desert town.", "What is the difference between a virus and a bacterium?",
)  # fmt: skip


class Head(nn.Module):
    """The drafter as published: fc over the token's embedding and the model's row, then layers of which the first has no norm before."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__()
        config._attn_implementation = "sdpa"
        self.inner = transformers.LlamaModel(config)
        self.inner.layers[0].input_layernorm = nn.Identity()
        self.inner.norm = nn.Identity()
        self.inner.embed_tokens = None
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)

    def forward(self, embedded: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[B, T, H] of both -> what stands for the model's next rows."""
        x: torch.Tensor = self.inner(inputs_embeds=self.fc(torch.cat([embedded, rows], -1)), use_cache=False).last_hidden_state
        return x

    def tensors(self) -> dict[str, torch.Tensor]:
        """Under the published names."""
        return {name.removeprefix("inner."): tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in self.state_dict().items()}


def answers(count: int, new: int, threads: int) -> list[list[int]]:
    """Token ids of conversations: a question and the model's answer to it."""
    asked = [question.format(subject) for subject in SUBJECTS for question in QUESTIONS]
    random.Random(0).shuffle(asked)
    sampling = [SamplingParams(temperature=0.8 * (index % 2), seed=index, max_tokens=new) for index in range(min(count, len(asked)))]
    with LLM(MODEL, platform="cpu", threads=threads, max_model_len=1024, max_num_seqs=32) as llm:
        outputs = llm.chat([[{"role": "user", "content": one}] for one in asked[: len(sampling)]], sampling, use_tqdm=False)
    return [[*output.prompt_token_ids, *output.outputs[0].token_ids] for output in outputs]


def train(model: Any, texts: Sequence[list[int]], layers: int, epochs: int, batch: int = 8) -> tuple[Head, list[float]]:
    """(a head that has seen the texts `epochs` times, the mean loss of each time).

    Behind each token it learns the model's next choice, and the one after that from its own row.
    """
    config = transformers.LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": layers})
    torch.manual_seed(0)
    head, table = Head(config), model.model.embed_tokens.weight
    with torch.inference_mode():
        rows = [model.model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    ids = torch.tensor(sorted({token for text in texts for token in text}))
    small = model.lm_head.weight[ids].detach()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    steps = epochs * -(-len(texts) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    order, rng, means = list(range(len(texts))), random.Random(0), list[float]()
    for epoch in range(epochs):
        rng.shuffle(order)
        began, losses = monotonic(), []
        for at in range(0, len(order), batch):
            taken = order[at : at + batch]
            width = max(len(texts[i]) for i in taken)
            tokens, hidden = torch.zeros(len(taken), width, dtype=torch.long), torch.zeros(len(taken), width, config.hidden_size)
            there = torch.zeros(len(taken), width, dtype=torch.bool)
            for line, i in enumerate(taken):
                tokens[line, : len(texts[i])], there[line, : len(texts[i])] = torch.tensor(texts[i]), True
                hidden[line, : len(texts[i])] = rows[i]
            loss = _loss(head, table[tokens].detach(), hidden, there, small)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
        print(f"epoch {epoch + 1}: loss {means[-1]:.3f}, {monotonic() - began:.0f} s", flush=True)
    return head, means


def _loss(head: Head, embedded: torch.Tensor, hidden: torch.Tensor, there: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    """Of the row behind each token, and of the one after it, which reads the head's own row instead of the model's."""
    given, total = hidden, torch.zeros(())
    for ahead in range(2):
        out = head(embedded[:, 1 + ahead :], given[:, : embedded.shape[1] - 1 - ahead])
        wanted, real = hidden[:, 1 + ahead :], there[:, 1 + ahead :]
        with torch.no_grad():
            choice = (wanted[real] @ small.T).argmax(-1)
        total = total + cross_entropy(out[real] @ small.T, choice) + smooth_l1_loss(out[real], wanted[real])
        given = out
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
    for name, default in (("answers", 96), ("new", 128), ("epochs", 6), ("layers", 1), ("tokens", 4), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    began = monotonic()
    kept = asked.folder / f"answers-{asked.answers}-{asked.new}.json"
    if not kept.exists():
        asked.folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(answers(asked.answers, asked.new, asked.threads)))
    texts = json.loads(kept.read_text())
    print(f"{len(texts)} answers, {sum(map(len, texts))} tokens, {monotonic() - began:.0f} s", flush=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(make_model("bf16", asked.folder), dtype=torch.float32)
    head, _ = train(model, texts, asked.layers, asked.epochs)
    folder = save(head, model.config, asked.layers, asked.folder / "eagle")
    print(f"trained in {monotonic() - began:.0f} s: {folder}", flush=True)
    per_step, rest = measure(folder, asked.tokens, asked.new, asked.threads)
    print(f"{per_step:.2f} tokens per step; {rest}")


if __name__ == "__main__":
    main()

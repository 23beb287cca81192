"""What models of one server cost each other: two engines of SmolLM2 on the same processors, with turns and without.

    python -m benchmarks.several [--model smollm2-135m-instruct] [--threads 2] [--turn-us 3000] [--rounds 3] [--seconds 10]

Each round runs one server with turns of --turn-us and one without (LLMX_CPU_TURN_US=0), in turn, and in each two cases: both models decode a
stream; and one decodes while the other computes prompts of about 1,000 tokens, one behind the other. Medians of the rounds. Where the machine has
other things to do, look at tokens per second of processor time: engines that compute at once have more threads to compete with.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

__all__ = ["Serving", "decode", "prompts"]


class Serving:
    """`llmx serve` with the model twice, as a and b."""

    def __init__(self, model: str, threads: int, turn_us: int) -> None:
        command = [sys.executable, "-m", "llmx", "serve", model, model, "--served-model-name", "a", "--served-model-name", "b", "--port", "0"]
        command += ["--threads", str(threads), "--max-model-len", "4096", "--kv-cache-memory-bytes", "400Mi"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "LLMX_CPU_TURN_US": str(turn_us)})
        assert self.process.stdout is not None
        self.url = next(line.split()[1] for line in self.process.stdout if line.startswith("ready"))

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()

    def processor_s(self) -> float:
        """Processor time of the engine processes so far."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        fields = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")

    def ask(self, model: str, prompt: str, tokens: int, *, stream: bool) -> urllib.request.Request:
        """A completion without an end of its own."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": stream, "ignore_eos": True, "temperature": 0}
        return urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})


def decode(server: Serving, model: str, until: float, times: list[float]) -> None:
    """Streams one answer behind the other; times: when each token came."""
    while time.monotonic() < until:
        with urllib.request.urlopen(server.ask(model, "Once upon a time", 2000, stream=True)) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
                if time.monotonic() > until:
                    break


def prompts(server: Serving, model: str, until: float, times: list[float]) -> None:
    """Computes long prompts; times: when each had its first token."""
    count = 0
    while time.monotonic() < until:
        count += 1
        with urllib.request.urlopen(server.ask(model, f"{count} " + "one two three four " * 250, 1, stream=False)) as answer:
            answer.read()
        times.append(time.monotonic())


def case(server: Serving, works: dict[str, object], seconds: float) -> dict[str, float]:
    """Rates per second of each model's work and the gaps of a's tokens, in milliseconds."""
    processor_s = server.processor_s()
    until, times = time.monotonic() + seconds, {model: list[float]() for model in works}
    threads = [threading.Thread(target=work, args=(server, model, until, times[model])) for model, work in works.items()]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rates = {model: (len(found) - 1) / max(1e-9, found[-1] - found[0]) if len(found) > 1 else 0.0 for model, found in times.items()}
    gaps = sorted((later - earlier) * 1000 for earlier, later in zip(times["a"], times["a"][1:], strict=False))
    decoded = sum(len(times[model]) for model, work in works.items() if work is decode)
    rates["decoded per processor second"] = decoded / (server.processor_s() - processor_s)
    return {**rates, "p50": gaps[len(gaps) // 2], "p99": gaps[int(len(gaps) * 0.99)], "most": gaps[-1]}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turn-us", type=int, nargs="+", default=[3000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    cases = {"a alone": {"a": decode}, "both decode": {"a": decode, "b": decode}, "b computes prompts": {"a": decode, "b": prompts}}
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for turn_us in (0, *args.turn_us):
            server = Serving(args.model, args.threads, turn_us)
            try:
                case(server, cases["b computes prompts"], 2)
                for name, works in cases.items():
                    result = case(server, dict(works), args.seconds)
                    print(turn_us, name, {key: round(value, 1) for key, value in result.items()}, file=sys.stderr, flush=True)
                    found.setdefault((turn_us, name), []).append(result)
            finally:
                server.close()
    print("turns of us, case: a per s, b per s, gaps of a in ms: p50, p99, most")
    for (turn_us, name), results in sorted(found.items(), key=lambda one: one[0][1]):
        middle = {key: median(result[key] for result in results) for key in results[0]}
        print(f"{turn_us:>6} {name:<20} " + "  ".join(f"{key} {value:.1f}" for key, value in middle.items()))


if __name__ == "__main__":
    main()

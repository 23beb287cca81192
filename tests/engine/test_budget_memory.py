"""The token budget learns from steps; available memory follows the cgroup."""

from __future__ import annotations

from pathlib import Path

from llmx.engine.memory import available_bytes
from llmx.sched.budget import FLOOR_TOKENS, TokenBudget


def test_without_measurements_or_decoders_the_whole_budget_is_free() -> None:
    budget = TokenBudget(1000)
    assert budget.prefill_tokens(0) == 1000 and budget.prefill_tokens(10) == 990
    budget.observe(4, 0, 2000.0)
    budget.observe(0, 100, 50_000.0)
    assert budget.prefill_tokens(0) == 1000


def test_a_mixed_step_stays_under_2_2_decode_steps_but_never_starves() -> None:
    budget = TokenBudget(4096)
    for _ in range(50):
        budget.observe(8, 0, 20_000.0)
        budget.observe(0, 100, 10_000.0)  # 100 us per prefill token
    assert budget.prefill_tokens(8) == 240  # (2.2 - 1) * 20 ms / 100 us
    for _ in range(50):
        budget.observe(8, 0, 100_000.0)
    assert budget.prefill_tokens(8) == FLOOR_TOKENS  # a decode step is over 60 ms already
    assert TokenBudget(32).prefill_tokens(30) == 2


def test_offline_the_whole_budget_is_free() -> None:
    budget = TokenBudget(1000, interactive=False)
    budget.observe(8, 0, 20_000.0)
    budget.observe(0, 100, 10_000.0)
    assert budget.prefill_tokens(8) == 992


def test_memory_is_cut_to_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8000000 kB\n")
    assert available_bytes(tmp_path) == 8_192_000_000
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("1000000000\n")
    (group / "memory.current").write_text("600000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 200000000\n")
    assert available_bytes(tmp_path) == 600_000_000
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 8_192_000_000

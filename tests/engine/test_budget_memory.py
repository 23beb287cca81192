"""The token budget learns from steps; available memory follows the control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmx.engine.memory import available_bytes, spare_bytes
from llmx.sched.budget import FLOOR_TOKENS, TokenBudget
from tests.cgroups import cgroup


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


NAMES = {2: ("memory.max", "memory.current", "inactive_file"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}


def group(version: int, limit: object, used: int, cache: int) -> dict[str, str]:
    """The memory files of one control group."""
    limit_name, used_name, cache_name = NAMES[version]
    return {limit_name: f"{limit}\n", used_name: f"{used}\n", "memory.stat": f"anon 1\ninactive_file 1\n{cache_name} {cache}\n"}


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_cut_to_the_control_groups(tmp_path: Path, version: int) -> None:
    def machine(name: str, path: str, groups: dict[str, dict[str, str]]) -> Path:
        root = cgroup(tmp_path / name, version, "memory", path, groups)
        (root / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8000000 kB\n")
        return root

    none = "max" if version == 2 else 2**63 - 4096
    assert available_bytes(machine("free", "a/b", {"a/b": group(version, none, 5, 0)})) == 8_192_000_000
    own = machine("own", "a/b", {"a/b": group(version, 1_000_000_000, 600_000_000, 200_000_000)})
    assert available_bytes(own) == 600_000_000
    assert spare_bytes(own) == 600_000_000 - (64 << 20)  # a reserve stays: the kernel never has to kill
    above = {"a": group(version, 900_000_000, 500_000_000, 0), "a/b": group(version, none, 400_000_000, 0)}
    assert available_bytes(machine("above", "a/b", above)) == 400_000_000
    container = machine("container", "docker/0123", {".": group(version, 300_000_000, 100_000_000, 0)})  # its group is mounted as the top
    assert available_bytes(container) == 200_000_000
    full = machine("full", "a", {"a": group(version, 100, 5000, 0)})
    assert available_bytes(full) == spare_bytes(full) == 0


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 8000000 kB\n")
    assert available_bytes(tmp_path) == 8_192_000_000 and spare_bytes(tmp_path) == int(8_192_000_000 * 0.95)
    assert 0 < spare_bytes() < available_bytes()

"""Process group and communicator of a vendor: an engine of two ranks exchanges its rows through them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")

from llmx.errors import PlatformError  # noqa: E402
from tests.distributed.test_mp import FIELDS, answers, engine_of  # noqa: E402
from tests.families.cases import Case  # noqa: E402
from tests.families.checkpoint import write_checkpoint  # noqa: E402
from tests.hooks.vendor import PROBE, install  # noqa: E402

PLATFORM = """
from llmx.hooks import DeviceCaps, PlatformInfo, hookimpl


@hookimpl
def llmx_platform_info():
    return PlatformInfo("sigma", "sigma", (1, 1), "llmx-platform-sigma")


@hookimpl
def llmx_device_caps(config):
    return DeviceCaps("sigma1", frozenset({"f32"}), frozenset({"host.unified"}), 1, 1 << 30)


@hookimpl
def llmx_device_runtime(config):
    return "cpu"
"""

# rows go through files: slow, and nothing of core's own is used
RANKS = """

import os, time
import torch
from llmx.errors import PlatformError
from llmx.hooks import ProcessGroup


class Files:
    def __init__(self, group):
        self.rank, self.size, self.folder, self.turn, self.lost = group.rank, group.size, group.address, 0, False

    def supports(self, op, dtype):
        return None

    def all(self, x):
        self.turn += 1
        mine = f"{self.folder}/{self.turn}.{self.rank}"
        torch.save(x, mine + ".part")
        os.rename(mine + ".part", mine)
        found = []
        for rank in range(self.size):
            while not os.path.exists(f"{self.folder}/{self.turn}.{rank}"):
                if self.lost:
                    raise PlatformError("a rank is gone")
                time.sleep(0.0005)
            found.append(torch.load(f"{self.folder}/{self.turn}.{rank}"))
        return found

    def count(self, what):
        with open(f"{self.folder}/calls", "a") as file:
            file.write(f"{self.rank} {what}\\n")

    def all_reduce(self, x):
        self.count("all_reduce")
        return sum(self.all(x))

    def all_gather(self, x):
        self.count("all_gather")
        return torch.cat(self.all(x), -1)

    def broadcast(self, x, root):
        return self.all(x)[root]

    def abort(self):
        self.lost = True

    def close(self):
        self.count("close")


@hookimpl
def llmx_process_group(config, size):
    return ProcessGroup(size, address=os.path.dirname(__file__))


@hookimpl
def llmx_communicator(group):
    return Files(group)
"""


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, plugin: str) -> None:
    files = {"sigma_llmx/__init__.py": "", "sigma_llmx/probe.py": PROBE.format(present=True, score=1, why="1 sigma"), "sigma_llmx/plugin.py": plugin}
    entry = "[llmx.probes]\nsigma = sigma_llmx.probe:detect\n[llmx.platforms]\nsigma = sigma_llmx.plugin\n"
    install(folder, monkeypatch, "llmx-platform-sigma", files, entry)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))))  # the other rank imports it too


def test_rows_go_through_the_vendors_communicator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, PLATFORM + RANKS)
    write_checkpoint(Case("tp", "LlamaConfig", "LlamaForCausalLM", FIELDS), tmp_path / "model", [3, 4, 5])
    model = str(tmp_path / "model")
    with engine_of(model, "sigma", 1) as engine:
        wanted = answers(engine, 3)
    assert not (tmp_path / "sigma_llmx/calls").exists()
    with engine_of(model, "sigma", 2) as engine:
        assert answers(engine, 3) == wanted
    calls = Counter((tmp_path / "sigma_llmx/calls").read_text().splitlines())
    assert calls["0 all_reduce"] == calls["1 all_reduce"] >= 4 * calls["0 all_gather"] > 0 and calls["0 all_gather"] == calls["1 all_gather"]
    assert calls["0 close"] == calls["1 close"] == 1


def test_without_the_hooks_several_ranks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, PLATFORM)
    write_checkpoint(Case("tp", "LlamaConfig", "LlamaForCausalLM", FIELDS), tmp_path / "model", [3, 4, 5])
    with pytest.raises(PlatformError, match="no collectives .llmx_process_group."), engine_of(str(tmp_path / "model"), "sigma", 2):
        pass

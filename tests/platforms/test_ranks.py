"""Ranks of cuda, rocm and xpu: which device each has, and torch's process group for such devices, called as torch itself calls it."""

from __future__ import annotations

import ast
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.distributed.distributed_c10d as c10d  # noqa: E402

from llmx.errors import PlatformError  # noqa: E402
from llmx.executor.torch.communicator import TorchCommunicator, store_group  # noqa: E402
from llmx.resolve import resolve  # noqa: E402
from tests.distributed.ranks import in_threads  # noqa: E402

GROUPS = {"cuda": "ProcessGroupNCCL", "rocm": "ProcessGroupNCCL", "xpu": "ProcessGroupXCCL"}
TYPES = {"cuda": "cuda", "rocm": "cuda", "xpu": "xpu"}


@pytest.mark.parametrize("name", GROUPS)
def test_each_rank_has_a_device_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = import_module(f"llmx_{name}.plugin").PLATFORM
    for given, rank, wanted in ((None, 0, ":0"), (None, 3, ":3"), (f"{TYPES[name]}:2", 1, ":3"), (TYPES[name], 1, ":1")):
        config, _ = resolve({"platform": name, **({"device": given} if given else {})})
        config = replace(config, platform=replace(config.platform, rank=rank))
        assert platform.device(config) == TYPES[name] + wanted
    config, _ = resolve({"platform": name, "device": "cpu"})
    assert platform.device(replace(config, platform=replace(config.platform, rank=1))) == "cpu"


@pytest.mark.parametrize("name", GROUPS)
def test_torch_without_the_group_is_refused_by_its_name(name: str) -> None:
    platform = import_module(f"llmx_{name}.plugin").PLATFORM
    config, _ = resolve({"platform": name})
    group = platform.llmx_process_group(size=2)
    if hasattr(torch.distributed, GROUPS[name]):
        pytest.skip("this build of torch has it")
    with pytest.raises(PlatformError, match=f"built without {GROUPS[name]}"):
        platform.llmx_communicator(config=config, group=group)


@pytest.mark.parametrize("name", sorted(set(GROUPS.values())))
def test_it_is_called_as_torch_calls_it(name: str) -> None:
    """The constructor's arguments and the options, as they stand in torch's own source."""
    tree = ast.parse(Path(c10d.__file__).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (made,) = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == name]
    assert [ast.unparse(arg) for arg in made.args] == ["backend_prefix_store", "group_rank", "group_size", "backend_options"] and not made.keywords
    assert any(ast.unparse(node) == f"{name}.Options()" for node in calls)
    assert "backend_options._timeout = timeout" in ast.unparse(tree)


class Recorded:
    """A process group for devices, as such builds of torch have it; gloo does the work."""

    calls: list[str] = []

    class Options:
        _timeout: Any = None

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        assert isinstance(options, Recorded.Options) and options._timeout is not None
        gloo = torch.distributed.ProcessGroupGloo
        own = gloo._Options()
        own._devices, own._timeout = [gloo.create_device(hostname="127.0.0.1")], options._timeout
        self._group = gloo(store, rank, size, own)

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._group, name)


@pytest.mark.parametrize("shape", [(0, 3), (1,), (7, 5), (131, 257)])
def test_sums_in_parts_have_the_bits_of_sums_in_one(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks; many bytes are added up in parts, one of each rank, whose sizes do not divide the rows."""
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Recorded, raising=False)
    monkeypatch.setattr(Recorded, "calls", [])
    group = store_group(3)
    given = [torch.from_numpy(np.random.default_rng(rank).normal(size=shape).astype(np.float32)) for rank in range(3)]
    ends: list[Any] = [type("End", (), {"abort": lambda self: None})()] * 3

    def rank(at: int) -> torch.Tensor:
        end = TorchCommunicator(replace(group, rank=at, keep=group.keep if at == 0 else None), "cpu", "ProcessGroupNCCL")
        return end.all_reduce(given[at])

    found = in_threads(rank, ends)
    wanted = given[0] + given[1] + given[2]
    assert all(torch.equal(one, wanted) for one in found)
    assert ("alltoall_base" in Recorded.calls) == (wanted.numel() * 4 > 1 << 16)

"""The platform `torch`: any device that torch knows, with core's reference kernels. The oracle for other platforms; only when named.

It is also the smallest platform that a vendor with a torch device needs: who it is, what the device has, and its torch name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

from llmx.config import EngineConfig
from llmx.hooks.collectives import Communicator, ProcessGroup
from llmx.hooks.specs import hookimpl
from llmx.hooks.types import ConfigPatch, Detection, DeviceCaps, PlatformInfo
from llmx.platform.torch_runtime import INSTALL_TORCH, load_torch

__all__ = ["TorchPlatform", "detect"]


def detect(environ: Mapping[str, str]) -> Detection:
    """Present when torch is installed; the lowest score, and chosen only when named. Imports nothing."""
    if find_spec("torch") is None:
        return Detection(False, score=0, why=f"torch is not installed: {INSTALL_TORCH}")
    return Detection(True, count=1, score=0, why="torch is installed; only when named")


class TorchPlatform:
    """Hook implementations of the platform `torch`."""

    @hookimpl
    def llmx_platform_info(self) -> PlatformInfo:
        """Who it is."""
        return PlatformInfo("torch", "torch", (1, 1), "llmx-core")

    @hookimpl
    def llmx_device_caps(self, config: EngineConfig) -> DeviceCaps:
        """Facts about --device, once torch used it. Raises PlatformError for a device that torch cannot use."""
        alone = config.platform.tensor_parallel_size == 1
        threads = config.platform.threads if alone else config.platform.rank_threads(len(os.sched_getaffinity(0)))
        caps: DeviceCaps = load_torch("device:device_caps")(_device(config), threads)
        return caps

    @hookimpl
    def llmx_config_defaults(self, config: EngineConfig) -> list[ConfigPatch]:
        """Reference means float32, pages included."""
        return [ConfigPatch("cache.kv_dtype", "float32", "the reference rounds nothing")]

    @hookimpl
    def llmx_device_runtime(self, config: EngineConfig) -> str:
        """--device, "cpu" by default."""
        return _device(config)

    @hookimpl
    def llmx_process_group(self, size: int) -> ProcessGroup:
        """A store of torch's on this host."""
        group: ProcessGroup = load_torch("communicator:store_group")(size)
        return group

    @hookimpl
    def llmx_communicator(self, group: ProcessGroup) -> Communicator:
        """gloo."""
        communicator: Communicator = load_torch("communicator:TorchCommunicator")(group)
        return communicator


def _device(config: EngineConfig) -> str:
    return config.platform.device or "cpu"

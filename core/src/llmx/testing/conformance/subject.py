"""Subject: the platform under test, its executors made from its hooks as a start makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmx.config import EngineConfig
from llmx.engine.chosen_platform import ChosenPlatform, value_dtypes
from llmx.errors import ConfigError, PlatformError
from llmx.executor import Executor, ModelBundle
from llmx.hooks.loader import PluginLoader
from llmx.models.plugin import CoreModels
from llmx.platform.plan import KernelChoice, Plan
from llmx.resolve import probe_environment, resolve
from llmx.testing.conformance.common import SEQS, TOKENS
from llmx.testing.conformance.outcome import Refused
from llmx.testing.driver import Driver, kv_plan
from llmx.testing.tiny_models import tiny_llama

__all__ = ["Subject"]

_NO_MODEL = "null/1"  # the abi of kernels that compute nothing: tokens come from a hash of the history


class Subject:
    """One installed platform. emulated: its device is torch's "cpu", whatever its probe says.

    exact: it takes float32, so results are compared closely. tolerance: what may differ, as a share of the largest value.
    environ: of this process before the platform was imported. options: for llmx.resolve. kept: what one check found and others use.
    Raises PluginError and PlatformError for a platform that is not installed or does not load.
    """

    def __init__(self, name: str, *, emulate: bool = False) -> None:
        self.name, self.emulated, self.environ = name, emulate, probe_environment()
        self.kept: dict[Any, Any] = {}
        options: dict[str, Any] = {"platform": name, "max_num_seqs": SEQS, "max_num_batched_tokens": TOKENS, "threads": 1}
        if emulate:
            options["device"] = "cpu"
        self.options = options
        plain, _ = resolve(options)
        self.loader = PluginLoader.discover(plain.platform)
        installed = [item.name for item in self.loader.group("llmx.platforms")]
        if name not in installed:
            raise PlatformError(f"platform {name!r} is not installed: install its package, or name one of {', '.join(installed)}")
        self.manager = self.loader.activate(name, builtin=[CoreModels()])
        self.platform = ChosenPlatform(name, self.manager)
        self.exact, self.config, self.caps = True, plain, self.platform.caps(plain)
        try:
            self.config, self.caps = self.configured(dtype="float32")
        except ConfigError:
            self.exact = False
            self.config, self.caps = self.configured()
        self.tolerance = 1e-4 if self.exact else 3e-2
        self.invariant = self.caps.has("batch_invariant")
        self._open: list[Executor] = []
        if emulate and self.manager.hook.llmx_executor(config=self.config, caps=self.caps, bundle=tiny_llama()) is not None:
            raise PlatformError(f"--emulate: platform {name!r} brings an executor of its own; only a device that torch knows (llmx_device_runtime) is emulated")
        self.computes = any(choice.resolution.abi != _NO_MODEL for choice in self.choices(tiny_llama()))

    @property
    def has_ranks(self) -> bool:
        """Whether ranks of this platform can meet: it implements llmx_process_group."""
        if "ranks" not in self.kept:
            group = self.manager.hook.llmx_process_group(config=self.config, caps=self.caps, size=2)
            if group is not None and group.close is not None:
                group.close()
            self.kept["ranks"] = group is not None
        return bool(self.kept["ranks"])

    def has_feature(self, name: str) -> bool:
        """Whether its executors have a feature."""
        if "features" not in self.kept:
            executor, _ = self.platform.executor(self.config, self.caps, tiny_llama(max_position_embeddings=TOKENS))
            self.kept["features"] = executor.limits.features
            executor.close()
        return name in self.kept["features"]

    def configured(self, **options: Any) -> tuple[EngineConfig, Any]:
        """(configuration with the platform's defaults and checks, caps) for further options. Raises ConfigError as a start would."""
        config, changes = resolve({**self.options, **options})
        caps = self.platform.caps(config)
        config, _, _ = self.platform.configure(config, caps, [change.path for change in changes])
        return config, caps

    def choices(self, bundle: ModelBundle, config: EngineConfig | None = None) -> list[KernelChoice]:
        """The kernels that a model would run with. Raises Refused with the reasons when an op has none."""
        executor, kernels = self.platform.executor(config or self.config, self.caps, bundle)
        return self._choices(config or self.config, bundle, executor, kernels)

    def _choices(self, config: EngineConfig, bundle: ModelBundle, executor: Executor, kernels: list[Any]) -> list[KernelChoice]:
        try:
            return self.platform.choices(config, self.caps, bundle.model, executor, kernels)
        except PlatformError as error:
            raise Refused(str(error)) from error

    def executor(self, bundle: ModelBundle, *, blocks: int = 600, config: EngineConfig | None = None) -> Any:
        """A loaded executor with pages; it is closed after the check. Raises Refused when an op has no kernel."""
        config = config or self.config
        executor, kernels = self.platform.executor(config, self.caps, bundle)
        self._open.append(executor)
        choices = self._choices(config, bundle, executor, kernels)
        dtype, kv_dtype = value_dtypes(config)
        facts = (("device", self.caps.arch), ("dtype", dtype), ("kv_dtype", kv_dtype))
        executor.load(Plan(self.name, "conformance", (), {}, bundle.digest, facts, tuple(choices)), lambda what, fraction: None)
        executor.kv_allocate(kv_plan(executor, blocks, bundle.max_model_len))
        executor.warm_up(lambda what, fraction: None)
        return executor

    def driver(self, bundle: ModelBundle | None = None, *, blocks: int = 600) -> Driver:
        """A driver over a tiny llama, or another model."""
        return Driver(self.executor(bundle or tiny_llama(max_position_embeddings=TOKENS), blocks=blocks))

    def close(self) -> None:
        """Closes the executors that were made since the last call."""
        for executor in self._open:
            executor.close()
        self._open = []

    def near(self, found: np.ndarray, wanted: np.ndarray, what: str = "values") -> None:
        """Raise AssertionError unless the arrays are equal within the tolerance."""
        assert found.shape == wanted.shape, f"{what}: shape {found.shape}, wanted {wanted.shape}"
        if found.size:
            allowed = self.tolerance * max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))
            with np.errstate(invalid="ignore"):
                off = np.where(found == wanted, 0.0, np.abs(found.astype(np.float64) - wanted))
            worst = float(np.nan_to_num(off, nan=np.inf).max())
            at = tuple(int(i) for i in np.unravel_index(int(np.nan_to_num(off, nan=np.inf).argmax()), off.shape))
            assert worst <= allowed, f"{what}: {found[at]:.6g} at {at}, wanted {wanted[at]:.6g} within {allowed:.2g}"

    def same(self, found: np.ndarray, wanted: np.ndarray, what: str = "values") -> None:
        """As `near`; the same bits where the platform declares `batch_invariant`."""
        self.near(found, wanted, what)
        if self.invariant:
            assert np.array_equal(found, wanted, equal_nan=True), f"{what} differ in bits, but the platform declares batch_invariant"

    def facts(self) -> Mapping[str, Any]:
        """Who it is, for the report."""
        info = self.manager.hook.llmx_platform_info()
        version = next(item.version for item in self.loader.group("llmx.platforms") if item.name == self.name)
        who = {"platform": self.name, "dist": info.dist, "version": version}
        return {**who, "api": list(info.api), "device": self.caps.arch, "emulated": self.emulated, "exact": self.exact}

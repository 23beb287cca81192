"""Every hookspec, one screen. Hooks wire things at start; nothing here is called while a step runs.

[1] first result that is not None wins; [*] results of all plugins are collected. All arguments are passed by keyword, and an
implementation may take fewer. `config` is the frozen EngineConfig, `caps` the device's DeviceCaps. Called in: A the API or
command-line process, E the engine process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

from llmx.config import EngineConfig
from llmx.hooks.collectives import Communicator, ProcessGroup
from llmx.hooks.devices import CompilerBackend, DeviceAllocator, GraphBackend
from llmx.hooks.records import RequestObserver, StatLogger, StepObserver
from llmx.hooks.routes import RouteDef
from llmx.hooks.types import (
    ConfigIssue,
    ConfigPatch,
    DeviceCaps,
    DiagItem,
    DrafterDef,
    EnvVar,
    ImplDef,
    LogitsProcessorDef,
    LoraResolverDef,
    OptionDef,
    PlatformInfo,
    StructuredBackendDef,
)

if TYPE_CHECKING:  # the command line resolves options without the executors, and without numpy
    from llmx.answers.reasoning_formats import ReasoningFormat
    from llmx.answers.tool_formats import ToolFormat
    from llmx.executor.base import Executor
    from llmx.executor.bundle import ModelBundle

__all__ = ["HookSpecs", "hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("llmx")
hookimpl = pluggy.HookimplMarker("llmx")


class HookSpecs:
    """The extension surface of llmx."""

    # -- platform: required --------------------------------------------------------------------------------------------

    @hookspec(firstresult=True)
    def llmx_platform_info(self) -> PlatformInfo | None:
        """[1] A, E. Who the platform is and for which API version it was written. Required."""

    @hookspec(firstresult=True)
    def llmx_device_caps(self, config: EngineConfig) -> DeviceCaps | None:
        """[1] E, at start. Facts about the device that the engine will use. Required."""

    @hookspec(firstresult=True)
    def llmx_executor(self, config: EngineConfig, caps: DeviceCaps, bundle: ModelBundle) -> Executor | None:
        """[1] E, at start. A whole-program executor for the model. Required, or llmx_device_runtime instead."""

    @hookspec(firstresult=True)
    def llmx_device_runtime(self, config: EngineConfig, caps: DeviceCaps) -> str | None:
        """[1] E, at start, when there is no llmx_executor. A device by its torch name: core's torch executor and kernels run on it."""

    # -- platform: optional --------------------------------------------------------------------------------------------

    @hookspec
    def llmx_attention_backends(self, config: EngineConfig, caps: DeviceCaps) -> Iterable[ImplDef]:  # type: ignore[empty-body]
        """[*] E, at start. Implementations of qkv_prep, kv_write, attention, mla and fusions that contain them."""

    @hookspec
    def llmx_gemm_kernels(self, config: EngineConfig, caps: DeviceCaps) -> Iterable[ImplDef]:  # type: ignore[empty-body]
        """[*] E, at start. Implementations of linear and fusions that begin or end with it."""

    @hookspec
    def llmx_op_kernels(self, config: EngineConfig, caps: DeviceCaps) -> Iterable[ImplDef]:  # type: ignore[empty-body]
        """[*] E, at start. Implementations of all other op kinds."""

    @hookspec(firstresult=True)
    def llmx_graph_backend(self, config: EngineConfig, caps: DeviceCaps) -> GraphBackend | None:
        """[1] E, at start, beside llmx_device_runtime. What records runs of ops as graphs; None: every op is called in every step."""

    @hookspec(firstresult=True)
    def llmx_compiler(self, config: EngineConfig, caps: DeviceCaps) -> CompilerBackend | None:
        """[1] E, at start, beside llmx_device_runtime. What compiles runs of ops for steps of few rows; None: nothing is compiled."""

    @hookspec(firstresult=True)
    def llmx_allocator(self, config: EngineConfig, caps: DeviceCaps) -> DeviceAllocator | None:
        """[1] E, at start, beside llmx_device_runtime. What gives device memory back while the engine sleeps; None: it cannot sleep."""

    @hookspec(firstresult=True)
    def llmx_process_group(self, config: EngineConfig, caps: DeviceCaps, size: int) -> ProcessGroup | None:
        """[1] E of rank 0, at start, with tensor_parallel_size above 1. Where the ranks of the engine meet; None: it can have one rank only."""

    @hookspec(firstresult=True)
    def llmx_communicator(self, config: EngineConfig, caps: DeviceCaps, group: ProcessGroup) -> Communicator | None:
        """[1] E of every rank, behind llmx_process_group. What the rank exchanges rows with; required beside that hook."""

    @hookspec
    def llmx_config_defaults(self, config: EngineConfig, caps: DeviceCaps) -> Iterable[ConfigPatch]:  # type: ignore[empty-body]
        """[*] E, at start. Defaults that suit the device; they never override what the user set."""

    @hookspec
    def llmx_config_check(self, config: EngineConfig, caps: DeviceCaps) -> Iterable[ConfigIssue]:  # type: ignore[empty-body]
        """[*] E, at start, after the defaults. What the device cannot do as configured."""

    @hookspec
    def llmx_env_vars(self) -> Iterable[EnvVar]:  # type: ignore[empty-body]
        """[*] A. Environment variables LLMX_<PLATFORM>_*; core reads them into config.platform.options."""

    @hookspec
    def llmx_add_options(self) -> Iterable[OptionDef]:  # type: ignore[empty-body]
        """[*] A, E. Options of the plugin, for the command line, files, variables and llmx.LLM."""

    @hookspec
    def llmx_diagnostics(self) -> Iterable[DiagItem]:  # type: ignore[empty-body]
        """[*] A. Lines of `llmx doctor` and `llmx platforms --json`."""

    # -- features ------------------------------------------------------------------------------------------------------

    @hookspec
    def llmx_models(self) -> Iterable[Any]:  # type: ignore[empty-body]
        """[*] A, E. llmx.models.registry.ModelDef of further architectures, or replacements of known ones."""

    @hookspec
    def llmx_structured_backends(self, config: EngineConfig) -> Iterable[StructuredBackendDef]:  # type: ignore[empty-body]
        """[*] E, at start. Backends that enforce JSON schemas, regular expressions and grammars."""

    @hookspec
    def llmx_drafters(self, config: EngineConfig) -> Iterable[DrafterDef]:  # type: ignore[empty-body]
        """[*] E, at start. Drafters: what guesses tokens ahead."""

    @hookspec
    def llmx_lora_resolvers(self, config: EngineConfig) -> Iterable[LoraResolverDef]:  # type: ignore[empty-body]
        """[*] E, at start. What finds the folder of a LoRA adapter that nobody loaded, by its name."""

    @hookspec
    def llmx_logits_processors(self, config: EngineConfig) -> Iterable[LogitsProcessorDef]:  # type: ignore[empty-body]
        """[*] E, at start. Logits processors that requests may name."""

    @hookspec
    def llmx_tool_parsers(self) -> Iterable[ToolFormat]:  # type: ignore[empty-body]
        """[*] A. Ways in which model families write tool calls; one replaces core's of the same name."""

    @hookspec
    def llmx_reasoning_parsers(self) -> Iterable[ReasoningFormat]:  # type: ignore[empty-body]
        """[*] A. Ways in which model families mark their reasoning; one replaces core's of the same name."""

    # -- watching ------------------------------------------------------------------------------------------------------

    @hookspec
    def llmx_step_observers(self, config: EngineConfig) -> Iterable[StepObserver]:  # type: ignore[empty-body]
        """[*] E, at start. Callables that are told of each step when it has ended."""

    @hookspec
    def llmx_stat_loggers(self, config: EngineConfig) -> Iterable[StatLogger]:  # type: ignore[empty-body]
        """[*] A, at the server's start. What is told of each reading of an engine's statistics."""

    @hookspec
    def llmx_request_observers(self, config: EngineConfig) -> Iterable[RequestObserver]:  # type: ignore[empty-body]
        """[*] A, at the server's start. What is told of requests: arrival, first token, end."""

    @hookspec
    def llmx_routes(self, config: EngineConfig) -> Iterable[RouteDef]:  # type: ignore[empty-body]
        """[*] A, at the server's start. HTTP routes of the plugin."""

"""Hooks: what a plugin may implement (specs), the types it exchanges (types, records), how it is found and loaded (loader).

A plugin needs `hookimpl` and the types; both can be imported from here.
"""

from llmx.hooks.collectives import COLLECTIVES, Communicator, ProcessGroup
from llmx.hooks.devices import CompilerBackend, DeviceAllocator, GraphBackend, GraphLimits
from llmx.hooks.records import (
    GenerationRecord,
    RequestObserver,
    RequestRecord,
    StatLogger,
    StatReading,
    StepObserver,
    StepRecord,
)
from llmx.hooks.routes import RouteDef
from llmx.hooks.specs import HookSpecs, hookimpl
from llmx.hooks.types import (
    API_VERSION,
    ConfigIssue,
    ConfigPatch,
    Detection,
    DeviceCaps,
    DiagItem,
    DrafterDef,
    EnvVar,
    ImplDef,
    LogitsModel,
    LogitsProcessor,
    LogitsProcessorDef,
    LoraResolverDef,
    OptionDef,
    PlatformInfo,
    Resolution,
    StructuredBackendDef,
)

__all__ = [
    "API_VERSION",
    "COLLECTIVES",
    "Communicator",
    "CompilerBackend",
    "ConfigIssue",
    "ConfigPatch",
    "Detection",
    "DeviceAllocator",
    "DeviceCaps",
    "DiagItem",
    "DrafterDef",
    "EnvVar",
    "GenerationRecord",
    "GraphBackend",
    "GraphLimits",
    "HookSpecs",
    "ImplDef",
    "LogitsModel",
    "LogitsProcessor",
    "LogitsProcessorDef",
    "LoraResolverDef",
    "OptionDef",
    "PlatformInfo",
    "ProcessGroup",
    "RequestObserver",
    "RequestRecord",
    "Resolution",
    "RouteDef",
    "StatLogger",
    "StatReading",
    "StepObserver",
    "StepRecord",
    "StructuredBackendDef",
    "hookimpl",
]

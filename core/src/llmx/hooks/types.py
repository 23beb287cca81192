"""Frozen types that plugins and core exchange. No torch type, no vendor word; fields are only added, with defaults.

Changing this file needs an ADR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from llmx.record import record

if TYPE_CHECKING:  # whoever only resolves options needs no numpy
    import numpy as np

__all__ = [
    "API_VERSION",
    "ConfigIssue",
    "ConfigPatch",
    "Detection",
    "DeviceCaps",
    "DiagItem",
    "DrafterDef",
    "EnvVar",
    "ImplDef",
    "LogitsModel",
    "LogitsProcessor",
    "LogitsProcessorDef",
    "LoraResolverDef",
    "OptionDef",
    "PlatformInfo",
    "Resolution",
    "StructuredBackendDef",
]

API_VERSION = (1, 1)  # core (M, m) takes plugins built for (M, <= m)


@record
class PlatformInfo:
    """Who a platform is. `api` is the hook API version that it was written for; `extends` names a parent platform."""

    name: str
    device_type: str
    api: tuple[int, int]
    dist: str
    vendor: str = ""
    extends: str | None = None


@record
class Detection:
    """What a probe found. `why` is one readable line, also when nothing was found; the highest score is chosen.

    named: without a device it can be chosen all the same, by its name alone.
    """

    present: bool
    count: int = 0
    score: int = 50
    why: str = ""
    named: bool = False


@record
class DeviceCaps:
    """Facts about one device. features: names registered in llmx.platform.caps, or `vendor.<platform>.<name>`."""

    arch: str
    dtypes: frozenset[str]
    features: frozenset[str]
    compute_units: int
    total_bytes: int
    alignment: int = 16  # bytes
    props: Mapping[str, Any] = field(default_factory=dict)

    def has(self, feature: str) -> bool:
        """True when the device has `feature`."""
        return feature in self.features


@record
class ConfigPatch:
    """A default that a platform sets: dotted path into EngineConfig. Never overrides what the user set."""

    path: str
    value: Any
    why: str


@record
class ConfigIssue:
    """What a platform finds wrong with a configuration: an error stops the start, a warning is printed."""

    level: Literal["error", "warn"]
    path: str
    why: str


@record
class EnvVar:
    """An environment variable that a plugin reads (through core), named LLMX_<PLATFORM>_*."""

    name: str
    default: str
    doc: str


@record
class DiagItem:
    """One line of `llmx doctor` / `llmx platforms`."""

    name: str
    value: str
    ok: bool = True
    remedy: str = ""


@record
class ImplDef:
    """One implementation of an op kind, or of several consecutive kinds of one region (a fusion: len(kinds) > 1).

    provider: dotted name, e.g. "acme.fa"; (kinds, provider) is unique. abi: torch/1, jax/1, c/1, numpy/1 or an executor's
    private one. target: "package.module:attribute", imported only when chosen. requires: capability names.
    tags: facts a run may ask for (batch_invariant, deterministic, graph_safe). supports(spec) -> None for yes, else why not;
    a fusion gets the tuple of specs.
    """

    kinds: tuple[str, ...]
    provider: str
    abi: str
    target: str
    priority: int = 50  # reference 0, generic 30, a vendor's own 50..90; below 0: only when the user orders it
    requires: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    supports: str | Callable[[Any], str | None] | None = None


@record
class Resolution:
    """The choice for one spec: `rejected` lists (provider, stage, reason) of every candidate that was not taken.

    stages: disabled, capabilities, abi, tags, supports, import, priority (a good one that was not needed).
    """

    kinds: tuple[str, ...]
    spec: str  # printable form of the spec
    provider: str
    target: str
    abi: str
    rejected: tuple[tuple[str, str, str], ...] = ()
    forced: bool = False
    reference: bool = False
    tags: tuple[str, ...] = ()  # of the ImplDef, in order


@record
class StructuredBackendDef:
    """A backend for structured output, an llmx.structured.Backend, imported when the first request needs it.

    target: "package.module:attribute", called with the llmx.structured.TokenTable of the model. priority: the highest is asked first; a
    request that one cannot honour goes to the next. supports: "package.module:function", light to import, called with the GrammarSpec
    before the target is imported: None for perhaps, otherwise why not.
    """

    name: str
    target: str
    priority: int = 50
    supports: str | None = None


@record
class DrafterDef:
    """A drafter on the host (llmx.draft.Drafter) or on the device (llmx.draft.device.DeviceDrafter), imported when it is chosen.

    name: the method in --speculative-config. target: "package.module:attribute", called with the settings that the user gave, all of them in
    `settings`; it raises llmx.errors.ConfigError for a value that it cannot take. num_tokens: drafts per request and step at most, where the
    user does not say.
    """

    name: str
    target: str
    settings: tuple[str, ...] = ()
    num_tokens: int = 8


@record
class LoraResolverDef:
    """What finds a LoRA adapter that nobody loaded, by the name that a request gives as its model.

    target: "package.module:attribute", called once with the EngineConfig; it gives a callable, name -> the adapter's folder, or None where it
    has none of that name. It is called between two steps, so it must be quick; an OSError or LlmxError is answered 400.
    """

    name: str
    target: str


@record
class LogitsModel:
    """What a logits processor may know of the model. token_bytes: the bytes of a token id; its first call may read the tokenizer."""

    vocab_size: int
    eos_ids: tuple[int, ...]
    token_bytes: Callable[[int], bytes]


class LogitsProcessor(Protocol):
    """Changes the logits of one answer before each of its tokens is drawn. A pure function of what it is given: then an answer depends on nobody else."""

    def __call__(self, tokens: np.ndarray, prompt_len: int, logits: np.ndarray) -> np.ndarray | None:
        """tokens: i32 [n], prompt and answer so far, read-only; logits: f32 [V], its own copy. The new logits, f32 [V]; None: `logits` was changed in place.

        -inf forbids a token. Called by the engine's thread: every request waits for what it takes.
        """
        ...


@record
class LogitsProcessorDef:
    """A logits processor that requests may name, imported when one does.

    target: "package.module:attribute", called for each answer with (args, model): the dict that the request gave and the LogitsModel; it
    returns a LogitsProcessor, and raises ValueError for arguments that it cannot take.
    """

    name: str
    target: str


@record
class OptionDef:
    """An option of a plugin, in the plugin's own section. `speed` of the plugin `zoo` is the flag --zoo-speed, the variable LLMX_ZOO_SPEED,
    `zoo_speed` in a file and for llmx.LLM, and config.plugins["zoo"]["speed"] where hooks are called.

    kind: bytes takes 4G, tokens takes 8k, list may be given several times, json is an object. default: its value where nothing sets it, of that
    kind or None. minimum, maximum: of a number, in its unit. aliases: whole names that it has as well. secret: its value is shown nowhere.
    """

    name: str
    kind: Literal["str", "int", "float", "bool", "bytes", "tokens", "list", "json"]
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    aliases: tuple[str, ...] = ()
    secret: bool = False

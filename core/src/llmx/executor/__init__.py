"""Executors run Programs: `base` is the protocol, `null` the one without a model. A platform brings its own.

This package is the public face for platforms: all types that an executor sees can be imported from here.
"""

from llmx.batch import Encode, Joined, KvOp, PromptLogprobs, Status, Step, StepOutput, Want
from llmx.executor.adapters import AdapterPart, LoraPart, WholePart
from llmx.executor.base import Control, Executor, Late, Limits, Progress, Reply, Ticket
from llmx.executor.bundle import ModelBundle
from llmx.executor.draft_loop import DraftLoop
from llmx.executor.draft_run import DraftRun
from llmx.executor.draft_shape import DRAFT, HIDDEN, KEPT, DraftRows, DraftShape, draft_shape, hidden_bytes, hidden_group
from llmx.kv.spec import BLOCK_TOKENS, GroupNeed, GroupPlan, KVPlan, KVSpec
from llmx.sample.params_rows import SamplingRow
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor, WeightSource

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_TOKENS",
    "DRAFT",
    "HIDDEN",
    "KEPT",
    "AdapterPart",
    "Control",
    "DraftLoop",
    "DraftRows",
    "DraftRun",
    "DraftShape",
    "Encode",
    "Executor",
    "GroupNeed",
    "GroupPlan",
    "HostTensor",
    "Joined",
    "KVPlan",
    "KVSpec",
    "KvOp",
    "Late",
    "Limits",
    "LoraPart",
    "ModelBundle",
    "Progress",
    "PromptLogprobs",
    "Reply",
    "SamplingRow",
    "Status",
    "Step",
    "StepOutput",
    "Ticket",
    "Want",
    "WeightSource",
    "WholePart",
    "draft_shape",
    "hidden_bytes",
    "hidden_group",
]

"""Platforms: capability names (caps), which platform and why (select), which kernel and why (kernels), the record (plan)."""

from llmx.platform.caps import CAPABILITIES, check_caps
from llmx.platform.kernels import KernelResolver
from llmx.platform.plan import KernelChoice, OpSpec, Plan

__all__ = ["CAPABILITIES", "KernelChoice", "KernelResolver", "OpSpec", "Plan", "check_caps"]

"""What the platform's hooks return: capabilities, defaults, variables, kernels with honest `supports`; and its errors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmx.errors import LlmxError, PlatformError
from llmx.executor import Step
from llmx.hooks.loader import load_target
from llmx.hooks.types import ConfigIssue, ConfigPatch, DeviceCaps, DiagItem, EnvVar, ImplDef
from llmx.platform.kernels import KernelResolver, op_spec
from llmx.resolve import set_path
from llmx.testing.conformance.common import PROMPT, SEQS, TOKENS, VOCAB, raises
from llmx.testing.conformance.op_programs import op_model
from llmx.testing.conformance.outcome import NotRun
from llmx.testing.op_cases import PLAIN, WIDTH
from llmx.testing.tiny_models import tiny_llama

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["ERROR_CHECKS", "HOOK_CHECKS"]


def capabilities_are_facts(subject: Subject) -> None:
    """Element types, units, memory and alignment that can be; every capability name is registered or the platform's own."""
    caps: Any = subject.manager.hook.llmx_device_caps(config=subject.config)
    assert isinstance(caps, DeviceCaps), f"llmx_device_caps gave {caps!r}"
    assert caps.arch and caps.dtypes and caps.compute_units >= 1 and caps.total_bytes > 0, f"capabilities that cannot be: {caps}"
    assert caps.alignment >= 1 and caps.alignment & (caps.alignment - 1) == 0, f"alignment {caps.alignment} is no power of two"


def defaults_have_reasons_and_yield_to_the_user(subject: Subject) -> None:
    """Each ConfigPatch has a path that exists and a reason; what the user set stays."""
    hook = subject.manager.hook
    patches = [patch for patches in hook.llmx_config_defaults(config=subject.config, caps=subject.caps) for patch in patches]
    for patch in patches:
        assert isinstance(patch, ConfigPatch) and patch.why, f"{patch!r} gives no reason"
        set_path(subject.config, patch.path, patch.value)
    config = subject.config
    assert config.scheduler.max_num_seqs == SEQS and config.scheduler.max_num_batched_tokens == TOKENS, "a default overrode what was set"


def issues_name_a_setting(subject: Subject) -> None:
    """Each ConfigIssue has a level, a path that exists and a reason."""
    for issues in subject.manager.hook.llmx_config_check(config=subject.config, caps=subject.caps):
        for issue in issues:
            assert isinstance(issue, ConfigIssue) and issue.level in ("error", "warn") and issue.why, f"{issue!r} is no issue with a reason"
            part, _, name = issue.path.partition(".")
            assert hasattr(getattr(subject.config, part, None), name), f"{issue.path!r} is no setting"


def variables_carry_the_platform_in_their_name(subject: Subject) -> None:
    """LLMX_<PLATFORM>_*, each with a line that says what it is for."""
    prefix = f"LLMX_{subject.name.upper()}_"
    own = getattr(subject.manager.get_plugin(f"llmx.platforms:{subject.name}"), "llmx_env_vars", list)
    for variable in own():
        assert isinstance(variable, EnvVar) and variable.doc, f"{variable!r} has no line that explains it"
        assert variable.name.startswith(prefix), f"{variable.name} does not begin with {prefix}"


def diagnostics_are_lines(subject: Subject) -> None:
    """Each DiagItem has a name and a value; one that is not ok has a remedy."""
    for items in subject.manager.hook.llmx_diagnostics():
        for item in items:
            assert isinstance(item, DiagItem) and item.name and (item.ok or item.remedy), f"{item!r}: a fault needs a remedy"


def offered(subject: Subject) -> list[ImplDef]:
    """All kernels that may run on the platform, core's reference kernels included."""
    executor, kernels = subject.platform.executor(subject.config, subject.caps, tiny_llama())
    executor.close()
    return [*kernels, *subject.platform.kernels(subject.config, subject.caps)]


def kernels_are_well_defined(subject: Subject) -> None:
    """Kinds, a provider, an abi and a target each; no two of one name; targets can be imported where the device allows them."""
    impls = offered(subject)
    assert impls, "the platform offers no kernel at all"
    KernelResolver(impls, subject.caps)  # refuses two of one name
    for impl in impls:
        assert isinstance(impl, ImplDef) and impl.kinds and impl.provider and impl.abi and impl.target, f"{impl!r} lacks a field"
        if all(subject.caps.has(name) for name in impl.requires) and ":" in impl.target:
            try:
                load_target(impl.target)
            except ModuleNotFoundError as error:  # an optional library, of which supports() has to speak
                assert impl.supports is not None and (error.name or "").split(".")[0] != impl.target.split(".")[0], f"{impl.target}: {error}"


def supports_answers_with_a_reason(subject: Subject) -> None:
    """None, or why not; it never raises, whatever the op says."""
    specs = [
        op_spec(op, kv_dtype="bf16", dtype="auto")
        for bundle in (tiny_llama(), tiny_llama("q4_1"), *(op_model(write, WIDTH) for write in PLAIN.values()))
        for op in bundle.model.programs["main"].ops
    ]
    specs += [replace(spec, rows=spec.rows * 1009, cols=spec.cols * 7 + 1) for spec in specs]
    for impl in offered(subject):
        supports = load_target(impl.supports) if isinstance(impl.supports, str) else impl.supports
        if supports is None or len(impl.kinds) > 1:
            continue
        for spec in specs:
            if spec.kind == impl.kinds[0]:
                answer = supports(spec)
                assert answer is None or (isinstance(answer, str) and answer), f"supports of {impl.provider} for {spec} answered {answer!r}"


def every_rejection_is_recorded(subject: Subject) -> None:
    """Each op of a llama has one choice, and every other candidate a stage and a reason."""
    for choice in subject.choices(tiny_llama()):
        for provider, stage, why in choice.resolution.rejected:
            assert provider and stage and why, f"{choice.resolution.spec}: {provider or 'a candidate'} was rejected without a reason"


def a_forced_kernel_is_taken_or_refused(subject: Subject) -> None:
    """Forcing the chosen provider changes nothing; forcing one that is not there is an error that lists the known ones."""
    bundle = tiny_llama()
    chosen = next(choice.resolution for choice in subject.choices(bundle) if choice.resolution.kinds == ("embed",))
    config, _ = subject.configured(kernel=[f"embed={chosen.provider}"], dtype="float32" if subject.exact else "auto")
    again = next(choice.resolution for choice in subject.choices(bundle, config) if choice.resolution.kinds == ("embed",))
    assert again.forced and again.provider == chosen.provider, f"forced {chosen.provider}, got {again.provider}"
    config, _ = subject.configured(kernel=["embed=conformance.unheard"], dtype="float32" if subject.exact else "auto")
    try:
        executor, kernels = subject.platform.executor(config, subject.caps, bundle)
        subject.platform.choices(config, subject.caps, bundle.model, executor, kernels)
    except PlatformError as error:
        assert chosen.provider in str(error), f"the error does not list the known providers: {error}"
    else:
        raise AssertionError("a provider that does not exist was forced without an error")


def a_step_that_is_too_long(subject: Subject) -> None:
    """The error names what came and the limit."""
    driver = subject.driver()
    driver.join({0: [5] * (TOKENS + 10)})
    raises(lambda: driver.step({0: [5] * (TOKENS + 10)}), str(TOKENS + 10), str(driver.executor.limits.max_tokens))


def a_token_outside_the_vocabulary(subject: Subject) -> None:
    """The error names the id."""
    if not subject.computes:
        raise NotRun("no model")
    driver = subject.driver()
    driver.join({0: PROMPT})
    raises(lambda: driver.step({0: [VOCAB]}), str(VOCAB))


def a_slot_that_nobody_holds(subject: Subject) -> None:
    """Rows for it, and leaving it, are errors that name the slot."""
    driver = subject.driver()
    raises(lambda: driver.run(Step(driver.seq, left=np.array([9], np.int32))), "9")


def submitting_more_than_fits_in_flight(subject: Subject) -> None:
    """A step beyond max_inflight, a collect out of order and a release of a step that is not late raise."""
    executor = subject.driver().executor
    tickets = [executor.submit(Step(i)) for i in range(executor.limits.max_inflight)]
    raises(lambda: executor.submit(Step(len(tickets))))
    for ticket in tickets:
        executor.collect(ticket)
    raises(lambda: executor.collect(tickets[0]))


def work_after_close(subject: Subject) -> None:
    """close twice is legal; a step afterwards raises."""
    executor = subject.driver().executor
    executor.close()
    executor.close()
    raises(lambda: executor.collect(executor.submit(Step(0, tokens=np.array([3], np.int32), slot=np.array([0], np.int32), q=np.array([1], np.int32)))))


def a_device_that_is_none(subject: Subject) -> None:
    """An error of llmx's own kind that names the device, before any weight is read."""
    if not subject.computes:
        raise NotRun("no model")
    try:
        config, caps = subject.configured(device="conformance:7")
        executor, _ = subject.platform.executor(config, caps, tiny_llama())
        executor.close()
    except LlmxError as error:
        assert "conformance:7" in str(error), f"the error does not name the device: {error}"
    else:
        raise AssertionError("--device conformance:7 was taken silently")


HOOK_CHECKS = (
    capabilities_are_facts,
    defaults_have_reasons_and_yield_to_the_user,
    issues_name_a_setting,
    variables_carry_the_platform_in_their_name,
    diagnostics_are_lines,
    kernels_are_well_defined,
    supports_answers_with_a_reason,
    every_rejection_is_recorded,
    a_forced_kernel_is_taken_or_refused,
)
ERROR_CHECKS = (
    a_step_that_is_too_long,
    a_token_outside_the_vocabulary,
    a_slot_that_nobody_holds,
    submitting_more_than_fits_in_flight,
    work_after_close,
    a_device_that_is_none,
)

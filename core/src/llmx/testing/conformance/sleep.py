"""Memory and sleep: what is given back, and that answers are the same afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmx.executor import Control
from llmx.testing.conformance.common import PROMPT, last_logits, raises
from llmx.testing.conformance.outcome import NotRun
from llmx.testing.driver import Driver

if TYPE_CHECKING:
    from llmx.testing.conformance.subject import Subject

__all__ = ["CHECKS"]


def _driver(subject: Subject) -> Driver:
    """A driver whose executor can sleep. Raises NotRun on a device that cannot."""
    if not subject.computes:
        raise NotRun("no model")
    if not subject.caps.has("memory.sleep"):
        raise NotRun("no sleep")
    return subject.driver()


def _control(driver: Driver, kind: str, **args: Any) -> dict[str, Any]:
    reply = driver.executor.control(Control(kind, args))
    assert reply.ok, f"{kind}: {reply.error}"
    return dict(reply.value)


def logits_are_the_same_after_waking(subject: Subject) -> None:
    """Twice; before, between and after the same bits where the platform declares batch_invariant, else within the tolerance."""
    driver = _driver(subject)
    wanted = last_logits(driver, 0, PROMPT)
    for _ in range(2):
        _control(driver, "sleep", level=1)
        _control(driver, "wake")
        subject.same(last_logits(driver, 0, PROMPT), wanted, "logits after waking")


def weights_and_pages_are_given_back(subject: Subject) -> None:
    """At least the bytes of all weights and pages, and as many are taken again."""
    driver = _driver(subject)
    weights = _control(driver, "stats")["weight_bytes"]
    pages = sum(need.block_bytes for need in driver.executor.kv_needs()) * 600
    released = _control(driver, "sleep", level=1)["released_bytes"]
    assert released >= weights + pages, f"{released} bytes were given back; weights have {weights}, pages {pages}"
    assert _control(driver, "wake")["restored_bytes"] == released, "other bytes were taken than given back"


def a_prompt_is_computed_again_after_waking(subject: Subject) -> None:
    """A request that was there before leaves, and its slot and blocks serve another one as if nothing had been."""
    driver = _driver(subject)
    wanted = last_logits(driver, 1, PROMPT)
    driver.join({0: PROMPT})
    driver.step({0: PROMPT[:-1]}, [])
    _control(driver, "sleep", level=1)
    _control(driver, "wake")
    driver.leave(0)
    subject.near(last_logits(driver, 0, PROMPT), wanted, "logits of a prompt that is computed again")


def a_sleeping_executor_says_so(subject: Subject) -> None:
    """A step, a second sleep, a wake without sleep and an unknown level are refused with a reason."""
    driver = _driver(subject)
    for kind, args in (("wake", {}), ("sleep", {"level": 7})):
        reply = driver.executor.control(Control(kind, args))
        assert not reply.ok and reply.error, f"{kind} {args} was taken"
    _control(driver, "sleep", level=1)
    again = driver.executor.control(Control("sleep", {"level": 1}))
    assert not again.ok and again.error, "sleep was taken twice"
    raises(lambda: driver.join({0: PROMPT}), "sleep")


CHECKS = (logits_are_the_same_after_waking, weights_and_pages_are_given_back, a_prompt_is_computed_again_after_waking, a_sleeping_executor_says_so)

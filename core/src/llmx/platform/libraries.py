"""Kernels that an optional library brings: which ops a platform offers through it, and what each takes. Imports neither torch nor the library.

The kernels themselves are adapters (llmx.executor.torch.library) that the platform gives the library's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec

from llmx.hooks.types import ImplDef
from llmx.platform.plan import OpSpec
from llmx.program.attrs import ActAttrs, AttentionAttrs, NormAttrs
from llmx.record import record

__all__ = ["library_impls"]

_HEADS = (64, 128, 256)


def library_impls(
    library: str, provider: str, package: str, *, activations: Iterable[str] | None = (), attention: bool = False, linear: bool = False,
    exact: bool = False, usable: Callable[[], str | None] | None = None, requires: str = "kernels.tiles", priority: int = 40,
) -> tuple[ImplDef, ...]:  # fmt: skip
    """ImplDefs of norm and act_mul (activations None: of neither) and, where they are asked for, attention and linear. library: its import name.
    package: the module with the objects NORM, ACT_MUL, ATTENTION and LINEAR; it is imported when one is chosen.
    exact: it computes in float32. usable: why the installed one cannot be imported, asked once it
    is there. requires: the capability of a device that it computes on."""
    of = _Library(library, exact, usable)
    found: list[tuple[str, str, Callable[[OpSpec], str | None]]] = []
    if activations is not None:
        found += [("norm", "NORM", partial(_norm, of)), ("act_mul", "ACT_MUL", partial(_act_mul, of, tuple(activations)))]
    if attention:
        found.append(("attention", "ATTENTION", partial(_attention, of)))
    if linear:
        found.append(("linear", "LINEAR", partial(_linear, of)))
    tags = {"linear": frozenset({"deterministic", "graph_safe"})}  # a product looks at sizes alone
    return tuple(
        ImplDef(
            (kind,), provider, "torch/1", f"{package}:{target}", priority, frozenset({requires}), tags.get(kind, frozenset({"deterministic"})), supports
        )
        for kind, target, supports in found
    )


@record
class _Library:
    """What every op of a library is asked."""

    name: str
    exact: bool
    usable: Callable[[], str | None] | None


def _refused(library: _Library, spec: OpSpec, *reasons: tuple[bool, str]) -> str | None:
    if find_spec(library.name) is None:
        return f"the package {library.name} is not installed"
    if library.usable is not None and (why := library.usable()):
        return why
    if spec.dtype == "f32" and not library.exact:
        return "values are float32 (--dtype float32); it computes in bfloat16"
    found = [reason for applies, reason in reasons if applies]
    return f"not implemented: {', '.join(found)}" if found else None


def _norm(library: _Library, spec: OpSpec) -> str | None:
    """rms with a weight over the whole row."""
    a: NormAttrs = spec.attrs
    return _refused(
        library, spec, (a.kind != "rms", f"{a.kind} norm"), (a.groups != 1, "groups"), (a.gated, "a gate"), (spec.bias, "a bias"), (a.eps_floor, "a floor"),
        (a.offset != 0.0, "1 + weight"), (not spec.rows, "a norm without a weight"),
    )  # fmt: skip


def _act_mul(library: _Library, activations: tuple[str, ...], spec: OpSpec) -> str | None:
    a: ActAttrs = spec.attrs
    return _refused(library, spec, (a.kind not in activations, a.kind), (bool(a.sparsity), "sparsity"))


def _linear(library: _Library, spec: OpSpec) -> str | None:
    """Weights that are stored in bfloat16."""
    other = [quant for quant in spec.quants if quant != "bf16"]
    return _refused(library, spec, (bool(other), f"weights of {', '.join(other)} (there is bf16)"))


def _attention(library: _Library, spec: OpSpec) -> str | None:
    """Causal attention over pages of bfloat16."""
    attrs: AttentionAttrs = spec.attrs
    s = attrs.spec
    return _refused(
        library, spec, (spec.kv_dtype != "bf16", f"pages of {spec.kv_dtype or 'nothing'}"), (s.mask != "causal", f"the mask {s.mask}"), (s.alibi, "alibi"),
        (s.sinks, "sinks"), (s.cross, "cross attention"), (s.chunk is not None, "chunks"), (s.relative_buckets is not None, "relative position bias"),
        (attrs.lse, "log-sum-exp as a result"), (s.head_dim != s.v_head_dim or s.head_dim not in _HEADS, f"heads of {s.head_dim} and {s.v_head_dim}"),
    )  # fmt: skip

"""KernelResolver: which implementation computes each op, with the reason for every one that does not.

Order: the user's, then priority, then provider name. Stages: disabled, order (a forced provider was wanted), capabilities,
abi, tags, supports, import; what is left over was not needed (stage priority). Fusions (several kinds) compete like any
implementation; a fusion yields when one of the ops it covers is forced elsewhere or has a single implementation of higher
priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llmx.errors import PlatformError
from llmx.hooks.loader import load_target
from llmx.hooks.types import DeviceCaps, ImplDef, Resolution
from llmx.platform.plan import KernelChoice, OpSpec
from llmx.program.ops import Op, Program

__all__ = ["KernelResolver", "op_spec"]

Rejection = tuple[str, str, str]


def op_spec(op: Op, *, kv_dtype: str, dtype: str) -> OpSpec:
    """What `supports` is asked about for one op. kv_dtype counts for ops that touch a state."""
    parts = [part for role in op.weights.values() for part in role]
    quants = tuple(dict.fromkeys(str(part.weight.quant) for part in parts))
    rows = sum(part.rows or part.weight.shape[0] for part in parts)
    cols = parts[0].weight.shape[-1] if parts and len(parts[0].weight.shape) > 1 else 0
    return OpSpec(op.kind, op.attrs, quants, rows, cols, kv_dtype if op.states else "", dtype, any(part.bias is not None for part in parts))


class KernelResolver:
    """Resolves one engine's ops. Raises PlatformError when an op has no implementation, or a forced one is rejected."""

    def __init__(
        self,
        impls: Iterable[ImplDef],
        caps: DeviceCaps,
        *,
        abis: frozenset[str] = frozenset(),
        orders: Mapping[str, Sequence[str]] | None = None,
        disabled: Iterable[str] = (),
        tags: frozenset[str] = frozenset(),
    ) -> None:
        self._caps = caps
        self._abis = abis
        self._orders = dict(orders or {})
        self._disabled = frozenset(disabled)
        self._tags = tags
        self._memo: dict[tuple[ImplDef, tuple[OpSpec, ...]], Rejection | None] = {}
        self._by_first: dict[str, list[ImplDef]] = {}
        seen: set[tuple[tuple[str, ...], str]] = set()
        for impl in impls:
            if (impl.kinds, impl.provider) in seen:
                raise PlatformError(f"provider {impl.provider!r} is registered twice for {'+'.join(impl.kinds)}")
            seen.add((impl.kinds, impl.provider))
            self._by_first.setdefault(impl.kinds[0], []).append(impl)
        providers = {impl.provider for impls in self._by_first.values() for impl in impls}
        absent = sorted(self._disabled - providers)
        if absent:
            raise PlatformError(f"--disable-kernel {absent[0]}: there is no such provider; known: {', '.join(sorted(providers)) or 'none'}")
        for kind, order in self._orders.items():
            if kind not in self._by_first:
                raise PlatformError(f"--kernel {kind}={','.join(order)}: there is no op kind {kind!r}; known: {', '.join(sorted(self._by_first))}")
            known = {impl.provider for impl in self._by_first.get(kind, [])}
            unknown = [provider for provider in order if provider not in known]
            if unknown:
                raise PlatformError(f"--kernel {kind}={','.join(order)}: no provider {unknown[0]!r} for {kind}; known: {', '.join(sorted(known)) or 'none'}")

    def resolve(self, program: Program, *, kv_dtype: str, dtype: str) -> list[KernelChoice]:
        """One choice per op, or per run of ops that a fusion covers, in order."""
        specs = [op_spec(op, kv_dtype=kv_dtype, dtype=dtype) for op in program.ops]
        choices, first = [], 0
        while first < len(program.ops):
            resolution = self._resolve_at(program.ops, specs, first)
            choices.append(KernelChoice(program.name, first, resolution))
            first += len(resolution.kinds)
        return choices

    def _resolve_at(self, ops: Sequence[Op], specs: Sequence[OpSpec], first: int) -> Resolution:
        kind = ops[first].kind
        order = self._orders.get(kind, ())
        rejected: list[Rejection] = []
        chosen: ImplDef | None = None
        for impl in self._candidates(kind, ops, first):
            covered = tuple(specs[first : first + len(impl.kinds)])
            reason = self._reject(impl, covered, order)
            if reason is None and chosen is not None:
                reason = (impl.provider, "priority", f"{impl.priority}: {chosen.provider} ({chosen.priority}) comes first")
            if reason is None:
                chosen = impl
            else:
                rejected.append((impl.provider if len(impl.kinds) == 1 else f"{impl.provider} ({'+'.join(impl.kinds)})", reason[1], reason[2]))
        forced = len(order) == 1
        if chosen is None or (forced and chosen.provider != order[0]):
            what = f"op {first} ({specs[first]})"
            reasons = "; ".join(f"{provider}: {stage}: {why}" for provider, stage, why in rejected) or "nobody offers this kind"
            raise PlatformError(f"{what} has no usable implementation{' although it was forced' if forced else ''}: {reasons}")
        covered_text = " + ".join(str(spec) for spec in specs[first : first + len(chosen.kinds)])
        tags = tuple(sorted(chosen.tags))
        return Resolution(chosen.kinds, covered_text, chosen.provider, chosen.target, chosen.abi, tuple(rejected), forced, chosen.priority == 0, tags)

    def _candidates(self, kind: str, ops: Sequence[Op], first: int) -> list[ImplDef]:
        order = self._orders.get(kind, ())

        def rank(impl: ImplDef) -> tuple[int, int, int, str]:
            place = order.index(impl.provider) if impl.provider in order else len(order)
            return (place, -impl.priority, -len(impl.kinds), impl.provider)

        return sorted((impl for impl in self._by_first.get(kind, []) if _covers(impl, ops, first)), key=rank)

    def _reject(self, impl: ImplDef, specs: tuple[OpSpec, ...], order: Sequence[str]) -> Rejection | None:
        if impl.provider in self._disabled:
            return (impl.provider, "disabled", "disabled by the user")
        if len(order) == 1 and impl.provider != order[0]:
            return (impl.provider, "order", f"{order[0]} is forced")
        key = (impl, specs)
        if key not in self._memo:
            self._memo[key] = self._check(impl, specs)
        return self._memo[key]

    def _check(self, impl: ImplDef, specs: tuple[OpSpec, ...]) -> Rejection | None:
        missing = sorted(name for name in impl.requires if not self._caps.has(name))
        if missing:
            return (impl.provider, "capabilities", f"needs {', '.join(missing)}; the device ({self._caps.arch}) lacks it")
        if self._abis and impl.abi not in self._abis:
            return (impl.provider, "abi", f"has abi {impl.abi}, the executor calls {', '.join(sorted(self._abis))}")
        untagged = sorted(self._tags - impl.tags)
        if untagged:
            return (impl.provider, "tags", f"is not {', '.join(untagged)}")
        if len(specs) > 1 and (why := self._yields(impl, specs)):
            return (impl.provider, "order", why)
        try:
            supports = load_target(impl.supports) if isinstance(impl.supports, str) else impl.supports
            why = supports(specs if len(specs) > 1 else specs[0]) if supports else None
            if why is not None:
                return (impl.provider, "supports", why)
            if ":" in impl.target:
                load_target(impl.target)
        except Exception as error:  # noqa: BLE001 - foreign code; its text is the recorded reason
            return (impl.provider, "import", f"{type(error).__name__}: {error}")
        return None

    def _yields(self, fusion: ImplDef, specs: tuple[OpSpec, ...]) -> str | None:
        for spec in specs:
            order = self._orders.get(spec.kind, ())
            if order and fusion.provider not in order:
                return f"{spec.kind} is ordered to {', '.join(order)}"
            for single in self._by_first.get(spec.kind, []):
                if len(single.kinds) == 1 and single.priority > fusion.priority and self._reject(single, (spec,), order) is None:
                    return f"{single.provider} has a higher priority for {spec.kind}"
        return None


def _covers(impl: ImplDef, ops: Sequence[Op], first: int) -> bool:
    covered = ops[first : first + len(impl.kinds)]
    same_region = all(_block(op) == _block(covered[0]) for op in covered)
    return len(covered) == len(impl.kinds) and same_region and all(op.kind == kind for op, kind in zip(covered, impl.kinds, strict=True))


def _block(op: Op) -> tuple[str, int]:
    return (op.region.block, op.region.index)

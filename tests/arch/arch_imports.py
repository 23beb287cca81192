"""Rules about who imports whom. Each check gives a list of faults, empty when the rule is kept."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping

from arch_tree import Tree

MAX_DEPTH = 12

# Longest matching prefix decides. A module imports modules of its own layer or lower ones; every core module has a place.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("llmx.errors", "llmx.record"),
    (
        "llmx.config", "llmx.options", "llmx.foreign_options", "llmx.option_values", "llmx.model_entries", "llmx.kv.spec",
        "llmx.structured_params", "llmx.sampling_params", "llmx.pooling_params", "llmx.hooks.types",
        "llmx.hooks.collectives",
    ),
    ("llmx.program", "llmx.sample.params_rows", "llmx.request"),
    ("llmx.answers", "llmx.batch", "llmx.sample", "llmx.weights"),
    ("llmx.executor",),
    ("llmx.hooks",),
    ("llmx.platform", "llmx.executor.torch"),
    ("llmx.models", "llmx.kv", "llmx.tokens", "llmx.draft", "llmx.structured", "llmx.lora", "llmx.plugin_options", "llmx.resolve"),
    ("llmx.sched",),
    ("llmx.engine", "llmx.testing"),
    ("llmx", "llmx.__main__"),
)

# What the packages beside core may import of it. The front ends are core's own: they come with it, in the same version.
PUBLIC = (
    "llmx.hooks", "llmx.platform", "llmx.program", "llmx.executor", "llmx.errors", "llmx.config", "llmx.structured", "llmx.draft",
    "llmx.answers", "llmx.testing", "llmx.record",
)  # fmt: skip
FRONT_END = (
    "llmx.engine", "llmx.tokens", "llmx.resolve", "llmx.options", "llmx.plugin_options", "llmx.foreign_options",
    "llmx.sampling_params", "llmx.structured_params", "llmx.pooling_params",
)  # fmt: skip
# they know neither the front ends nor each other
PLUGINS = ("llmx_cpu", "llmx_cuda", "llmx_rocm", "llmx_tpu", "llmx_xpu", "llmx_llguidance", "llmx_xgrammar", "llmx_otel", "llmx_triton", "llmx_ipex")
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "llmx_cpu": PUBLIC,
    "llmx_cuda": PUBLIC,
    "llmx_rocm": PUBLIC,
    "llmx_tpu": PUBLIC,
    "llmx_xpu": PUBLIC,
    "llmx_llguidance": PUBLIC,
    "llmx_xgrammar": PUBLIC,
    "llmx_otel": PUBLIC,
    "llmx_triton": PUBLIC,
    "llmx_ipex": PUBLIC,
    "llmx_cli": PUBLIC + FRONT_END,
    "llmx_server": PUBLIC + FRONT_END,
}

# Where torch and its like may be imported: the reference executor, the platform that runs on jax, kernels for the torch executor.
TORCH_HOMES = ("llmx.executor.torch", "llmx_tpu", "llmx_triton", "llmx_cpu.for_torch", "llmx_ipex.kernels")
TORCH_NAMES = ("torch", "transformers", "triton", "jax")


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    """True when `name` is one of the prefixes or a module below one."""
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def cycles(tree: Tree) -> list[str]:
    """Groups of modules that import each other at module level. A package's `__init__` counts as a module of its own."""
    graph = tree.edges(lazy=False)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(node: str) -> None:  # Tarjan 1972
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append("import cycle: " + ", ".join(sorted(group)))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def longest_chain(tree: Tree) -> list[str]:
    """The longest chain of module-level imports, first importer first. Call only on a tree without cycles."""
    graph = tree.edges(lazy=False)
    best: dict[str, list[str]] = {}

    def chain(node: str) -> list[str]:
        if node not in best:
            best[node] = [node, *max((chain(t) for t in sorted(graph[node])), key=len, default=[])]
        return best[node]

    return max((chain(name) for name in sorted(graph)), key=len, default=[])


def too_deep(tree: Tree, limit: int = MAX_DEPTH) -> list[str]:
    """The longest import chain, when it is longer than the limit."""
    chain = longest_chain(tree)
    return [f"import depth {len(chain)} > {limit}: {' > '.join(chain)}"] if len(chain) > limit else []


def layer(name: str) -> int | None:
    """Height of a core module, 0 the lowest; None when the table has no place for it."""
    best, height = "", None
    for number, prefixes in enumerate(LAYERS):
        for prefix in prefixes:
            exact = prefix == "llmx" and name != "llmx"
            if not exact and within(name, (prefix,)) and len(prefix) > len(best):
                best, height = prefix, number
    return height


def upward(tree: Tree) -> list[str]:
    """Imports from a lower layer of core into a higher one, lazy ones included, and modules without a layer."""
    faults = []
    for module in tree.under("llmx"):
        own = layer(module.name)
        if own is None:
            faults.append(f"{module.path}: no layer in tests/arch/arch_imports.py")
            continue
        for target in sorted(tree.edges(lazy=True)[module.name]):
            other = layer(target)
            if within(target, ("llmx",)) and other is not None and other > own:
                faults.append(f"{module.path}: layer {own} imports {target} of layer {other}")
    return faults


def backward(tree: Tree) -> list[str]:
    """Imports of a front end or a platform from core, and of the front ends from a platform."""
    faults = []
    for module in tree.modules.values():
        package = module.name.split(".")[0]
        for found in module.imports:
            top = found.name.split(".")[0]
            if top in ALLOWED and ((package == "llmx" and module.name != "llmx.__main__") or (package in PLUGINS and top != package)):
                faults.append(f"{module.path}:{found.line}: {package} imports {found.name}")
    return faults


def private(tree: Tree) -> list[str]:
    """Imports of core modules that are not public, from the packages beside core."""
    faults = []
    for package, allowed in ALLOWED.items():
        for module in tree.under(package):
            for found in module.imports:
                if found.name.split(".")[0] != "llmx":
                    continue
                target = tree.resolve(found.name) or found.name
                if target != "llmx" and not within(target, allowed):
                    faults.append(f"{module.path}:{found.line}: {target} is not public; allowed: {', '.join(allowed)}")
                elif any(part.startswith("_") and part != "__version__" for part in found.name.split(".")):
                    faults.append(f"{module.path}:{found.line}: {found.name} is private")
    return faults


def torch_imports(tree: Tree) -> list[str]:
    """Imports of torch and its like outside the modules that may."""
    return [
        f"{module.path}:{found.line}: imports {found.name}"
        for module in tree.modules.values()
        if not within(module.name, TORCH_HOMES)
        for found in module.imports
        if found.name.split(".")[0] in TORCH_NAMES and not found.typing_only
    ]


# distributions whose import name differs from their own
IMPORT_NAMES = {
    "grpcio": "grpc", "grpcio-health-checking": "grpc_health", "grpcio-reflection": "grpc_reflection", "protobuf": "google",
    "pyzmq": "zmq", "pyyaml": "yaml", "opentelemetry-api": "opentelemetry", "flashinfer-python": "flashinfer", "flash-attn": "flash_attn", "amd-aiter": "aiter",
}  # fmt: skip
# libraries whose documented interface another one hands on, in the range that it pins itself
HANDED_ON = {"pydantic_core": "pydantic"}


def undeclared(tree: Tree) -> list[str]:
    """Imports of libraries that the package's own pyproject.toml does not require (extras count)."""
    faults = []
    for path in sorted([*tree.root.glob("*/pyproject.toml"), *tree.root.glob("*/*/pyproject.toml")]):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        needs = [*project.get("dependencies", []), *(need for extra in project.get("optional-dependencies", {}).values() for need in extra)]
        names = {re.split(r"[^\w.-]", need)[0].lower() for need in needs}
        declared = {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}
        for folder in sorted(path.parent.glob("src/*")):
            for module in tree.under(folder.name):
                for found in module.imports:
                    top = found.name.split(".")[0]
                    known = top in sys.stdlib_module_names or {top, HANDED_ON.get(top)} & declared or top.split("_")[0] == "llmx"
                    if not known and not found.typing_only:
                        faults.append(f"{module.path}:{found.line}: imports {top}, which {path.relative_to(tree.root)} does not require")
    return faults

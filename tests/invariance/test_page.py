"""docs/invariance.md: each rule with the tests that hold it; this test writes the page and fails when a test named on it is gone.

After a deliberate change: python -m pytest tests/invariance --write-docs
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

INTRODUCTION = """# Invariance

Written by `tests/invariance`. On the CPU platform an answer does not depend on its neighbours
([ADR 0007](adr/0007-answers-do-not-depend-on-neighbours.md)). A request gives the same bits of logits, and so the same tokens and logprobs, alone
or in any batch, with its prompt whole or in chunks, after a prefix hit or a preemption, with fused or single kernels, with one
thread or two. This holds for one instruction-set level; levels differ from each other by rounding. The kernel tests run on every
level that the machine has (`LLMX_CPU_ISA` chooses one).

These rules make it true. Who writes a kernel keeps them; who breaks one on purpose changes this page first.

| rule | tests |
|---|---|
"""

RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "An output element's arithmetic depends on its own row, weights and absolute position only: not on the number of rows, the cut over "
        "threads, the chunking or the kernel family. One chain of additions for each element; the inner dimension is never split.",
        ("cpu/test_linear.py::test_linear_equals_numpy_and_rows_are_independent", "cpu/test_rowwise.py::test_rows_do_not_see_each_other"),
    ),
    (
        "The precision of a row's activations depends on its own position (int16 below 64, int8 after), never on the rows beside it.",
        ("cpu/test_linear.py::test_int8_and_int16_rows_lie_beside_each_other",),
    ),
    (
        "K and V of all rows of a layer are written to pages first; attention reads pages only.",
        ("cpu/test_attention.py::test_chunks_of_the_prompt_give_equal_bits",),
    ),
    (
        "Attention works in absolute chunks of 256 tokens. A chunk gives a partial result with its own maximum; one function merges them in "
        "ascending order; masked keys and null pages add nothing, exactly.",
        (
            "cpu/test_attention.py::test_partials_and_order_of_items_give_equal_bits",
            "cpu/test_attention.py::test_a_request_does_not_depend_on_its_neighbours",
            "cpu/test_attention.py::test_blocks_before_the_window_may_be_the_null_page",
        ),
    ),
    (
        "Every reduction (norm, softmax, log-sum-exp, top-p) runs over fixed chunks and lanes.",
        ("cpu/test_rowwise.py::test_rows_do_not_see_each_other", "cpu/test_sampler.py::test_a_row_does_not_depend_on_its_neighbours"),
    ),
    (
        "Values between ops are f32; they are rounded only as inputs of a product and on pages. Fused and single kernels share one inline "
        "function for each formula; multiply and add are fused only where the source says so.",
        ("cpu/test_native_model.py::test_fused_ops_give_the_bits_of_single_ones",),
    ),
    (
        "An adapter's A x reads the row as f32, before it is rounded; B's sum is one chain over the rows of A, ascending, added before g, bias and activation. "
        "Rows without an adapter have the bits that they have without any.",
        ("lora/test_native.py::test_bits_are_a_rows_own", "lora/test_native.py::test_fused_equals_unfused_at_every_level"),
    ),
    (
        "The floating-point mode is set on entry and restored on exit, in every thread.",
        ("cpu/test_native_steps.py::test_float_mode_of_the_caller_is_restored",),
    ),
    (
        "A draft is accepted when it is the token that the target draws.",
        ("conformance/test_suite.py::test_area", "sched/test_drafting.py::test_right_drafts_save_steps_and_wrong_ones_cost_none"),
    ),
    (
        "The level is fixed for a process. `Plan.numerics` covers what changes results and seeds the prefix-hash chain, so pages of other "
        "numerics never match.",
        ("kv/test_block_pool.py::test_hashes_chain_and_depend_on_everything_before",),
    ),
    (
        "The whole, on tiny models at every level: alone and in a batch, chunks of 1, 7 and 100, 1 and 2 threads.",
        ("cpu/test_native_model.py::test_bits_do_not_depend_on_batch_chunks_or_threads", "cpu/test_pool.py::test_many_threads_many_calls_same_bits"),
    ),
    (
        "The whole, on SmolLM2-135M: lengths 1 to 1,500, batches of 1, 2, 5, 8 and 33, chunks, 1 and 2 threads, with and without fusion; bits of logits.",
        (
            "cpu/test_native_smollm2.py::test_bits_of_logits_do_not_depend_on_batch_chunks_threads_or_fusion",
            "cpu/test_native_smollm2.py::test_one_token_at_a_time_equals_the_whole_prompt",
            "cpu/test_native_smollm2.py::test_thirty_three_requests_at_once",
        ),
    ),
    (
        "Through the engine and over HTTP under load: prefix hits, preemption, forks, neighbours of other lengths and temperatures.",
        (
            "pairs/test_pairs.py::test_pair_equals_the_plain_result",
            "cases/test_c_sampling.py::test_b055_b056_neighbours_change_nothing",
            "e2e/test_smollm2.py::test_answers_do_not_depend_on_neighbours",
        ),
    ),
)

END = """
Not there yet on the CPU platform, so not tested: latent attention, recurrent states and experts.
With several ranks ([distributed.md](distributed.md)) the bits are those of a fixed number of ranks.
"""


def _page() -> str:
    rows = [f"| {rule} | {', '.join(f'`tests/{test}`' for test in tests)} |" for rule, tests in RULES]
    return INTRODUCTION + "\n".join(rows) + "\n" + END


def _functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_page_is_written_from_the_rules_and_every_test_on_it_exists(request: pytest.FixtureRequest) -> None:
    for _, tests in RULES:
        for test in tests:
            file, _, function = test.partition("::")
            assert function in _functions(ROOT / "tests" / file), f"{test} is named in docs/invariance.md and does not exist"
    path = ROOT / "docs/invariance.md"
    if request.config.getoption("--write-docs"):
        path.write_text(_page())
    assert path.read_text() == _page()

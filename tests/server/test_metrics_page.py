"""docs/metrics.md lists what /metrics shows, no more and no less."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from llmx.engine.outputs import EngineStats
from llmx_server.engine_metrics import EngineCollector
from llmx_server.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
HEAD = """# Metrics

What `GET /metrics` shows, in the text format of Prometheus. The names are vLLM's where it has the metric, with the prefix `llmx:`. Every
metric has the label `model_name`. Counters end in `_total`; histograms have `_bucket`, `_sum` and `_count`. While the engine is loading or
dead, only what the server itself has seen is shown. This page is made by `python -m pytest tests/server/test_metrics_page.py --write-docs`.

| metric | kind | further labels | what |
|---|---|---|---|
"""


def page() -> str:
    metrics = Metrics("m")
    sizes = ("kv_bytes", "num_kv_blocks", "kv_tokens", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    metrics.name_model("m", SimpleNamespace(kv_dtype="bf16", **dict.fromkeys(sizes, 1)))  # type: ignore[arg-type]
    metrics.counted(EngineStats(accepted_per_position=[0]))
    metrics.render()
    lines = []
    for collector in list(metrics.registry._collector_to_names):
        for family in collector.collect():
            if isinstance(collector, EngineCollector):
                labels = [name for name in family.samples[0].labels if name not in ("model_name", "le")]
            else:
                labels = [name for name in collector._labelnames if name != "model_name"]  # type: ignore[attr-defined]
            lines.append(f"| `{family.name}` | {family.type} | {', '.join(f'`{label}`' for label in labels)} | {family.documentation} |\n")
    return HEAD + "".join(lines)


def test_the_page_is_what_is_shown(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write-docs"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()

"""`llmx bench`: how fast a model runs here (throughput, latency, startup, kernels, collectives), and what clients of a server see (serve)."""

from __future__ import annotations

from llmx_cli.bench import collectives, kernels, latency, serve, startup, throughput
from llmx_cli.group import group

__all__ = ["app"]

app = group("Measure how fast a model runs here, or what clients of a server see.")
app.command("throughput")(throughput.throughput)
app.command("latency")(latency.latency)
app.command("startup")(startup.startup)
app.command("serve")(serve.serve)
app.command("kernels")(kernels.kernels)
app.command("collectives")(collectives.collectives)

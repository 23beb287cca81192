"""The command line of llmx; `llmx_cli.entry.run` is what the `llmx` command calls."""

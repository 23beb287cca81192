"""The command line of llmx; `llmx_cli.main.run` is what the `llmx` command calls."""

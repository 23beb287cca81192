"""OpenTelemetry traces; found through the entry point group `llmx.plugins`."""

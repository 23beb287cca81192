"""Structured output with llguidance; found through the entry point group `llmx.plugins`."""
